"""MovieLens ratings (Harper and Konstan, ACM TiiS 2015) in the forms in which they are passed around."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from workloads.configs import InteractionsConfig
from workloads.fetch import ml_100k_path
from workloads.forms import Column, Delimited, Kind
from workloads.histories import load_histories
from workloads.interface import Workload
from workloads.models.configs import SequenceModelConfig
from workloads.paths import existing_paths, one_layout
from workloads.sequences import SequenceWorkload
from workloads.tables import Columns, Layout


def _layout(name: str, separator: str, columns: tuple[str, str, str, str], *, has_header: bool) -> Layout:
    user, item, rating, time = columns
    kinds = (Kind.INTEGER, Kind.INTEGER, Kind.NUMBER, Kind.NUMBER)
    described = tuple(Column(column, kind) for column, kind in zip(columns, kinds, strict=True))

    def ratings(values: Columns) -> NDArray[np.float32]:
        return values[rating].astype(np.float32)

    return Layout(
        form=Delimited(name, separator, described, has_header),
        user=user,
        item=item,
        time=time,
        action=ratings,
    )


_PLAIN = ("user", "movie", "rating", "timestamp")
_TYPED = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")

LAYOUTS = (
    _layout("ratings.dat", "::", _PLAIN, has_header=False),
    _layout("ratings.csv", ",", ("userId", "movieId", "rating", "timestamp"), has_header=True),
    _layout("u.data", "\t", _PLAIN, has_header=False),
    _layout("ml-100k.inter", "\t", _TYPED, has_header=True),
)
_NAMES_IN_FOLDERS = ("ratings.dat", "ratings.csv", "u.data", "*.inter")


def find_ratings(path: str) -> list[Path]:
    """The file or files of ratings that `path` names.

    FileNotFoundError where a folder holds none, ValueError where it holds several.
    """
    files: list[Path] = []
    for given in existing_paths(path):
        files += [_ratings_in(given)] if given.is_dir() else [given]
    return files


def _ratings_in(folder: Path) -> Path:
    found = sorted(file for name in _NAMES_IN_FOLDERS for file in folder.rglob(name))
    if not found:
        raise FileNotFoundError(f"{folder} holds none of {', '.join(_NAMES_IN_FOLDERS)}: give path= the file")
    if len(found) > 1:
        raise ValueError(f"{folder} holds several ratings: give path= one of {', '.join(map(str, found))}")
    return found[0]


def _fetched(cache_dir: Path) -> list[Path]:
    fetched = ml_100k_path(cache_dir)
    if not fetched.is_file():
        raise FileNotFoundError(
            "workload 'movielens' has no data yet: run `nestpipe data fetch ml-100k`, or give "
            "path=FILE-OR-FOLDER"
        )
    return [fetched]


def build(
    config: InteractionsConfig,
    model_config: SequenceModelConfig,
    build_model: Callable[..., nn.Module],
    *,
    seed: int,
    num_workers: int,
    cache_dir: Path,
) -> Workload:
    """The workload for the registry; ValueError or FileNotFoundError where `path` does not do."""
    files = find_ratings(config.path) if config.path else _fetched(cache_dir)
    histories = load_histories("movielens", files, one_layout(files, LAYOUTS), cache_dir)
    return SequenceWorkload(
        "movielens", histories, config, model_config, build_model, seed=seed, num_workers=num_workers
    )
