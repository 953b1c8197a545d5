"""Settings of the workloads. This file imports no torch, so that listing them is quick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.models.configs import DLRM_VARIANTS
from workloads.parsing import option, require, require_positive


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
        require_positive(self, "num_rows", "num_tables", "batch_size", "mean_length")
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


INDUSTRIAL_CONTEXTS: Mapping[str, int] = {
    "hour_of_week": 168,
    "surface": 16,
    "os": 64,
    "country": 240,
    "device": 4_000,
    "segment": 512,
    "city": 20_000,
    "campaign": 50_000,
}
"""Rows of the small tables beside items and users, in the order in which `num_contexts` takes them."""


@dataclass(frozen=True)
class IndustrialConfig:
    """A huge table of items, users with interests, small context tables, and a hot set that drifts."""

    num_items: int = option(1_000_000, "item ids, up to thousands of millions")
    hash_rows: int = option(0, "rows that item ids are hashed to; 0: a row for each id")
    num_live: int = option(0, "items that have a chance at a step, the rest wait for drift; 0: all")
    num_users: int = option(100_000, "user ids")
    num_contexts: int = option(8, f"context tables of one key a sample, at most {len(INDUSTRIAL_CONTEXTS)}")
    batch_size: int = option(512, "samples a worker and step")
    mean_length: float = option(16.0, "mean items a sample")
    sigma: float = option(0.5, "spread of the lengths' logarithm; 0: all near the mean")
    exponent: float = option(1.12, "Zipf exponent of the items, over all and inside a topic; 0: uniform")
    num_topics: int = option(128, "topics that the items are divided into")
    topic_items: int = option(0, "items of a topic; 0: the live ones divided by the topics")
    topics_a_user: int = option(4, "topics that a user is interested in")
    own_share: float = option(0.5, "share of a user's items that come from these topics")
    drift: float = option(0.45, "share of popular items that others replace at the next step; 0: none")

    def __post_init__(self) -> None:
        require_positive(self, "num_items", "num_users", "batch_size", "mean_length")
        require_positive(self, "num_topics", "topics_a_user")
        for name in ("hash_rows", "num_live"):
            value = getattr(self, name)
            require(0 <= value <= self.num_items, name, value, f"0 to num_items={self.num_items}")
        contexts = len(INDUSTRIAL_CONTEXTS)
        require(0 <= self.num_contexts <= contexts, "num_contexts", self.num_contexts, f"0 to {contexts}")
        require(self.sigma >= 0, "sigma", self.sigma, "0 or more")
        require(self.exponent >= 0, "exponent", self.exponent, "0 or more")
        live = self.num_live or self.num_items
        require(self.num_topics <= live, "num_topics", self.num_topics, f"at most the {live} live items")
        in_topic = live // self.num_topics
        require(0 <= self.topic_items <= in_topic, "topic_items", self.topic_items, f"0 to {in_topic}")
        for name in ("own_share", "drift"):
            value = getattr(self, name)
            require(0 <= value <= 1, name, value, "0 to 1")


_CLUSTERED: Mapping[str, Any] = {
    "num_items": 10_000_000,
    "hash_rows": 2_000_000,
    "embedding_dim": 32,
    "num_contexts": 0,
    "mean_length": 256.0,
    "max_length": 256,
    "sigma": 0.0,
    "exponent": 0.97,
    "topic_items": 1_000,
    "own_share": 0.7,
    "drift": 0.7,
}
INDUSTRIAL_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "laptop": {},
    "one-interest": {**_CLUSTERED, "topics_a_user": 1},
    "several-interests": {**_CLUSTERED, "topics_a_user": 4},
    "many-interests": {**_CLUSTERED, "topics_a_user": 16},
    # A batch with the skew of a far larger one needs few live items.
    "meta-like": {
        "batch_size": 4_096,
        "mean_length": 12.0,
        "exponent": 1.02,
        "num_live": 8_000,
        "num_topics": 16,
        "own_share": 0.3,
        "drift": 0.85,
    },
    "kuairand-like": {
        "num_items": 32_038_725,
        "hash_rows": 1_000_000,
        "num_users": 27_285,
        "num_contexts": 0,
        "mean_length": 185.0,
        "max_length": 1024,
        "sigma": 0.8,
        "exponent": 0.97,
        "own_share": 0.6,
        "drift": 0.0,
    },
    "billion": {"num_items": 1_000_000_000, "hash_rows": 1_000_000},
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
class KuaiRandConfig(InteractionsConfig):
    """Logs of KuaiRand, and which features of users and videos go into the sequences."""

    side_features: tuple[str, ...] = option((), "categories of users and videos, from files beside the logs")


SEPARATORS: Mapping[str, str] = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|", "space": " "}
TIME_UNITS: Mapping[str, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of each time unit make a second."""


@dataclass(frozen=True)
class LogConfig(InteractionsConfig):
    """Any log of interactions with a header, and which of its columns mean what."""

    user: str = option("user_id", "column of the user's id, integers or text")
    item: str = option("item_id", "column of the item's id, integers or text")
    time: str = option("timestamp", "column of the time, numbers; in Parquet also timestamps")
    action: str = option("", "column of the action's weight, numbers; none: all weigh 1")
    separator: str = option("comma", f"between CSV columns: {', '.join(SEPARATORS)} or one character")
    time_unit: str = option("s", f"unit of the time where it is a number: {', '.join(TIME_UNITS)}")
    text_ids: bool = option(False, "whether ids are text even where those of the first rows are integers")

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.separator in SEPARATORS or len(self.separator) == 1
        require(known, "separator", self.separator, f"one of {', '.join(SEPARATORS)} or one character")
        require(self.time_unit in TIME_UNITS, "time_unit", self.time_unit, f"one of {', '.join(TIME_UNITS)}")
        columns = [self.user, self.item, self.time, *([self.action] if self.action else [])]
        distinct = len(set(columns)) == len(columns)
        require(distinct, "user, item, time, action", ", ".join(columns), "a column for each")


CRITEO_NUM_DENSE, CRITEO_NUM_FIELDS = 13, 26


@dataclass(frozen=True)
class CriteoConfig:
    """Criteo's click logs, and how their categories become rows of tables."""

    path: str = option("", "train.txt, day files or a folder of either, plain or .gz; several by commas")
    batch_size: int = option(512, "samples a worker and step")
    ids: str = option("hash", "how a category becomes a row: hash or vocabulary")
    hash_rows: tuple[int, ...] = option(
        (100_000,), "with ids=hash: rows of every field's table or 26 numbers"
    )
    min_frequency: int = option(10, "with ids=vocabulary: samples that a category needs for its own row")
    multi_hot: tuple[int, ...] = option((), "rows a sample and field, 26 numbers; those beyond 1 are made up")
    holdout: float = option(1 / 7, "last share of the rows, held out for evaluation")

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "min_frequency")
        require(self.ids in ("hash", "vocabulary"), "ids", self.ids, "hash or vocabulary")
        counts = (1, CRITEO_NUM_FIELDS)
        fits = len(self.hash_rows) in counts and min(self.hash_rows) >= 2
        require(fits, "hash_rows", self.hash_rows, f"1 or {CRITEO_NUM_FIELDS} numbers, each 2 or more")
        fits = not self.multi_hot or (len(self.multi_hot) == CRITEO_NUM_FIELDS and min(self.multi_hot) >= 1)
        require(fits, "multi_hot", self.multi_hot, f"{CRITEO_NUM_FIELDS} numbers, each 1 or more")
        require(0 <= self.holdout < 1, "holdout", self.holdout, "0 or more and less than 1")


CRITEO_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "laptop": {},
    # Sizes of MLPerf's DLRM-v2 benchmark, whose tables are capped at 40 million rows. Its rows beyond the
    # first of a field are made up from the files' single categories, there as here.
    "mlperf": {
        "hash_rows": (
            *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
            *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000),
            *(590_152, 12_973, 108, 36),
        ),
        "multi_hot": (*(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),),
        **DLRM_VARIANTS["mlperf"],
    },
}
"""Fields of the workload's and the model's settings that a preset replaces."""
