"""Settings of the models and their published sizes. This file imports no torch either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.parsing import option, require, require_positive


@dataclass(frozen=True)
class PooledConfig:
    """Rows averaged over each sample, then a small dense part."""

    embedding_dim: int = option(64, "elements of a row")
    hidden: tuple[int, ...] = option((64, 32), "widths of the dense part's hidden layers")

    def __post_init__(self) -> None:
        require_positive(self, "embedding_dim")
        require(all(width > 0 for width in self.hidden), "hidden", self.hidden, "widths of more than 0")


@dataclass(frozen=True)
class SequenceModelConfig:
    """What all models of item sequences have in common; the defaults suit two cores and drop nothing."""

    embedding_dim: int = option(64, "elements of a row and width of a block")
    num_blocks: int = option(2, "blocks")
    num_heads: int = option(1, "attention heads; they divide embedding_dim")
    dropout: float = option(0.0, "share of a block's inner elements that training drops")
    embedding_dropout: float = option(0.0, "share of the first block's input that training drops")
    positions: bool = option(False, "whether a learned vector of its position is added to each item's row")
    max_length: int = option(200, "most recent items of a user that make the sample")
    num_negatives: int = option(128, "negatives drawn for each sample")
    temperature: float = option(0.05, "divides the logits of the sampled softmax")

    def __post_init__(self) -> None:
        require_positive(self, "embedding_dim", "num_blocks", "num_heads", "max_length", "num_negatives")
        require_positive(self, "temperature")
        divides = self.embedding_dim % self.num_heads == 0
        require(divides, "num_heads", self.num_heads, f"a divisor of embedding_dim={self.embedding_dim}")
        for name in ("dropout", "embedding_dropout"):
            value = getattr(self, name)
            require(0 <= value < 1, name, value, "0 or more and less than 1")


@dataclass(frozen=True)
class HstuConfig(SequenceModelConfig):
    """HSTU on item sequences."""


@dataclass(frozen=True)
class FuxiConfig(SequenceModelConfig):
    """FuXi-alpha on item sequences."""

    qk_dim: int = option(32, "elements of a head's query and key")
    ffn_factor: int = option(1, "hidden width of the feed-forward part, in embedding_dims")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "qk_dim", "ffn_factor")


_ACTIVATIONS = ("silu", "relu")


def _require_activation(activation: str) -> None:
    require(activation in _ACTIVATIONS, "activation", activation, f"one of {', '.join(_ACTIVATIONS)}")


# Smooth unless a published size asks for the published ReLU: one pre-activation at its kink that flips by
# rounding makes two equal methods drift apart in float32, and a comparison would blame the method.
_SMOOTH = "silu"


@dataclass(frozen=True)
class SasrecConfig(SequenceModelConfig):
    """SASRec on item sequences."""

    positions: bool = option(True, "whether a learned vector of its position is added to each item's row")
    activation: str = option(_SMOOTH, "of the feed-forward part: silu or relu")

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_activation(self.activation)


@dataclass(frozen=True)
class DlrmConfig:
    """DLRM with a low-rank cross network; the defaults suit two cores."""

    embedding_dim: int = option(16, "elements of a row")
    num_dense: int = option(13, "numeric features of a sample; 0: no bottom part")
    bottom: tuple[int, ...] = option((64, 16), "widths of the layers on the numeric features")
    cross_layers: int = option(3, "layers of the cross network")
    cross_rank: int = option(32, "rank of a cross layer's matrix")
    over: tuple[int, ...] = option((128, 64), "widths of the layers on the crossed features")
    activation: str = option(_SMOOTH, "of the layers of bottom and over: silu or relu")

    def __post_init__(self) -> None:
        require_positive(self, "embedding_dim", "cross_rank")
        require(self.num_dense >= 0, "num_dense", self.num_dense, "0 or more")
        require(self.cross_layers >= 0, "cross_layers", self.cross_layers, "0 or more")
        for name in ("bottom", "over"):
            widths = getattr(self, name)
            fits = bool(widths) and all(width > 0 for width in widths)
            require(fits, name, widths, "one width or more, each more than 0")
        _require_activation(self.activation)


_ML_1M = {
    "max_length": 200,
    "embedding_dim": 50,
    "num_blocks": 2,
    "num_heads": 1,
    "dropout": 0.2,
    "embedding_dropout": 0.2,
    "positions": True,
    "num_negatives": 128,
    "temperature": 0.05,
}

HSTU_VARIANTS: Mapping[str, Mapping[str, Any]] = {"laptop": {}, "ml-1m": _ML_1M}
FUXI_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "laptop": {},
    "ml-1m": {**_ML_1M, "qk_dim": 50},
    "kuairand-27k": {
        **_ML_1M,
        "max_length": 1024,
        "embedding_dim": 128,
        "num_blocks": 4,
        "num_heads": 4,
        "qk_dim": 32,
        "dropout": 0.5,
        "embedding_dropout": 0.5,
    },
}
SASREC_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "laptop": {},
    "ml-1m": {**_ML_1M, "activation": "relu"},
}
DLRM_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "laptop": {},
    "mlperf": {
        "embedding_dim": 128,
        "bottom": (512, 256, 128),
        "cross_layers": 3,
        "cross_rank": 512,
        "over": (1024, 1024, 512, 256),
        "activation": "relu",
    },
}
"""Fields of each model's settings that its published sizes replace."""
