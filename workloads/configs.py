"""Settings of the workloads and models. This file imports no torch, so that listing them is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.parsing import option, require


def _require_positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(value > 0, name, value, "more than 0")


@dataclass(frozen=True)
class SyntheticConfig:
    """Zipf keys in samples of log-normal length."""

    num_rows: int = option(200_000, "rows of each table")
    num_tables: int = option(1, "tables, with one feature each")
    batch_size: int = option(512, "samples a worker and step")
    mean_length: float = option(40.0, "mean tokens a sample and feature; a sample may have none")
    sigma: float = option(0.5, "spread of the lengths' logarithm; 0: all near the mean")
    exponent: float = option(1.0, "Zipf exponent of the keys; 0: uniform")

    def __post_init__(self) -> None:
        _require_positive(self, "num_rows", "num_tables", "batch_size", "mean_length")
        require(self.sigma >= 0, "sigma", self.sigma, "0 or more")
        require(self.exponent >= 0, "exponent", self.exponent, "0 or more")


SYNTHETIC_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "lookup-bound": {},
    "dense-bound": {"num_rows": 20_000, "mean_length": 8.0, "hidden": (1024, 1024, 1024)},
    # Few keys twice in a batch: split into micro-batches it moves hardly more, as the paper's totals say.
    "paper-ratio": {
        "num_rows": 100_000,
        "embedding_dim": 32,
        "mean_length": 8.0,
        "exponent": 0.0,
        "hidden": (32,),
    },
    "multi-table": {"num_tables": 8, "num_rows": 50_000, "mean_length": 5.0},
    "tiny": {"num_rows": 1_000, "batch_size": 16, "mean_length": 5.0, "embedding_dim": 16, "hidden": (16,)},
}
"""Fields of the workload's and the model's settings that a preset replaces."""


@dataclass(frozen=True)
class InteractionsConfig:
    """Where a log of interactions lies, and how many users' sequences make a batch."""

    path: str = option("", "file or folder; several files separated by commas")
    batch_size: int = option(0, "samples a worker and step; 0: at most 64, a global batch within one pass")

    def __post_init__(self) -> None:
        require(self.batch_size >= 0, "batch_size", self.batch_size, "0 or more")


@dataclass(frozen=True)
class PooledConfig:
    """Rows averaged over each sample, then a small dense part."""

    embedding_dim: int = option(64, "elements of a row")
    hidden: tuple[int, ...] = option((64, 32), "widths of the dense part's hidden layers")

    def __post_init__(self) -> None:
        _require_positive(self, "embedding_dim")
        require(all(width > 0 for width in self.hidden), "hidden", self.hidden, "widths of more than 0")


@dataclass(frozen=True)
class HstuConfig:
    """HSTU on item sequences; the defaults are near the published ML-1M settings, without dropout."""

    embedding_dim: int = option(64, "elements of a row and width of a block")
    num_blocks: int = option(2, "blocks")
    num_heads: int = option(1, "attention heads; they divide embedding_dim")
    dropout: float = option(0.0, "share of a block's inner elements that training drops")
    max_length: int = option(200, "most recent items of a user that make the sample")
    num_negatives: int = option(128, "negatives drawn for each sample")
    temperature: float = option(0.05, "divides the logits of the sampled softmax")

    def __post_init__(self) -> None:
        _require_positive(self, "embedding_dim", "num_blocks", "num_heads", "max_length", "num_negatives")
        _require_positive(self, "temperature")
        divides = self.embedding_dim % self.num_heads == 0
        require(divides, "num_heads", self.num_heads, f"a divisor of embedding_dim={self.embedding_dim}")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "0 or more and less than 1")
