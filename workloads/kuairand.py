"""KuaiRand (Gao et al., CIKM 2022): raw logs of 27K, 1K and Pure, and a reduced form of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from workloads.configs import KuaiRandConfig
from workloads.delimited import first_line
from workloads.forms import Column, Delimited, Kind
from workloads.histories import load_histories
from workloads.interface import Workload
from workloads.kuairand_sides import check_names, load_sides
from workloads.models.configs import SequenceModelConfig
from workloads.paths import existing_paths, one_layout
from workloads.sequences import SequenceWorkload
from workloads.tables import Columns, Layout

_BITS = {
    "is_click": 1,
    "is_like": 2,
    "is_follow": 4,
    "is_comment": 8,
    "is_forward": 16,
    "is_hate": 32,
    "long_view": 64,
    "is_profile_enter": 128,
}

_RAW_COLUMNS = (
    *("user_id", "video_id", "date", "hourmin", "time_ms"),
    *("is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view"),
    *("play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time", "is_profile_enter"),
    *("is_rand", "tab"),
)
_NOT_IN_REDUCED = ("is_like", "is_hate", "profile_stay_time", "is_rand", "tab")


def _bit_sum(columns: Columns) -> NDArray[np.float32]:
    """The actions of a view as one number, a bit each; a column that is not there counts as 0."""
    total = np.zeros(len(columns["user_id"]), dtype=np.int64)
    for name, bit in _BITS.items():
        if name in columns:
            total += bit * (columns[name] != 0)
    return total.astype(np.float32)


def _bit_sum_of_reduced(columns: Columns) -> NDArray[np.float32]:
    """As `_bit_sum`, with `label` standing for a like (1) or a hate (0)."""
    liked = np.where(columns["label"] == 1, _BITS["is_like"], _BITS["is_hate"])
    return _bit_sum(columns) + liked.astype(np.float32)


def _integers(names: Iterable[str]) -> tuple[Column, ...]:
    return tuple(Column(name, Kind.INTEGER) for name in names)


RAW = Layout(
    form=Delimited("kuairand-raw", ",", _integers(_RAW_COLUMNS), has_header=True),
    user="user_id",
    item="video_id",
    time="time_ms",
    action=_bit_sum,
    times_a_second=1000,
)

_REDUCED_COLUMNS = (
    *_integers(name for name in _RAW_COLUMNS if name not in _NOT_IN_REDUCED),
    Column("label", Kind.INTEGER),
    Column("timestamp", Kind.ANYTHING, used=False),
)
REDUCED = Layout(
    form=Delimited("kuairand-reduced", "\t", _REDUCED_COLUMNS, has_header=True),
    user="user_id",
    item="video_id",
    time="time_ms",
    action=_bit_sum_of_reduced,
    times_a_second=1000,
    # Its rows come in no order, so that ties need a rule.
    ties_by_item=True,
)

_LAYOUTS = (RAW, REDUCED)
_SIZES = ("27k", "1k", "pure")


def find_logs(path: str) -> list[Path]:
    """The log files that `path` names, in order of time and part.

    In a folder (and below) these are the standard logs, or else the one reduced file; the random logs,
    which follow another policy, are read only when named. FileNotFoundError where there is none,
    ValueError where a folder holds several data sets.
    """
    files: list[Path] = []
    for given in existing_paths(path):
        files += _logs_in(given) if given.is_dir() else [given]
    return files


def _logs_in(folder: Path) -> list[Path]:
    logs = sorted(folder.rglob("log_standard_*.csv"), key=lambda log: log.name)
    sizes = [size for size in _SIZES if any(f"_{size}" in log.stem.lower() for log in logs)]
    if len(sizes) > 1:
        found = ", ".join(size.upper() for size in sizes)
        raise ValueError(f"{folder} holds several data sets ({found}): give path= the folder of one")
    if logs:
        return logs
    reduced = [file for file in sorted(folder.rglob("*.csv")) if REDUCED.form.begins_with(first_line(file))]
    if len(reduced) > 1:
        raise ValueError(
            f"{folder} holds several reduced files: give path= one of {', '.join(map(str, reduced))}"
        )
    if not reduced:
        raise FileNotFoundError(
            f"{folder} holds no log_standard_*.csv: give path= the log files or their folder"
        )
    return reduced


def build(
    config: KuaiRandConfig,
    model_config: SequenceModelConfig,
    build_model: Callable[..., nn.Module],
    *,
    seed: int,
    num_workers: int,
    cache_dir: Path,
) -> Workload:
    """The workload for the registry; ValueError or FileNotFoundError where `path` does not do."""
    if not config.path:
        raise ValueError(
            "workload 'kuairand' needs path=FILE-OR-FOLDER, the logs of KuaiRand 27K, 1K or Pure"
        )
    check_names(config.side_features)
    files = find_logs(config.path)
    histories = load_histories("kuairand", files, one_layout(files, _LAYOUTS), cache_dir)
    return SequenceWorkload(
        "kuairand",
        histories,
        config,
        model_config,
        build_model,
        seed=seed,
        num_workers=num_workers,
        sides=load_sides(config.side_features, files, histories, cache_dir) if config.side_features else (),
    )
