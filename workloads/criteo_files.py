"""Criteo's click logs (Kaggle's train.txt, the Terabyte's day files) as memory-mapped arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from workloads.cache import prepared
from workloads.configs import CRITEO_NUM_DENSE, CRITEO_NUM_FIELDS
from workloads.delimited import BLOCK_BYTES, located, read_blocks
from workloads.forms import Column, Delimited, Kind
from workloads.hexadecimal import parse_hexadecimal
from workloads.npy import NpyWriter, mapped
from workloads.paths import existing_paths

FORMAT_VERSION = 1

_LABEL = "label"
_DENSE = tuple(f"integer_{number}" for number in range(1, CRITEO_NUM_DENSE + 1))
_CATEGORIES = tuple(f"category_{number}" for number in range(1, CRITEO_NUM_FIELDS + 1))
FORM = Delimited(
    "criteo",
    "\t",
    (
        Column(_LABEL, Kind.BINARY),
        *(Column(name, Kind.INTEGER_OR_BLANK) for name in _DENSE),
        *(Column(name, Kind.HEX_OR_BLANK) for name in _CATEGORIES),
    ),
    has_header=False,
)
_DAY = re.compile(r"day_(\d+)(\.gz)?")


@dataclass(frozen=True)
class Clicks:
    """Samples in the order of the files: 161 bytes each.

    `labels` [n], uint8, are 0 or 1; `dense` [n, 13], float32, is log(1 + max(x, 0)) of each integer x, a
    blank being 0; `categories` [n, 26], uint32, are the hexadecimal numbers, and bit f of `missing` [n],
    uint32, says that field f is blank.
    """

    labels: NDArray[np.uint8]
    dense: NDArray[np.float32]
    categories: NDArray[np.uint32]
    missing: NDArray[np.uint32]

    @property
    def num_samples(self) -> int:
        return len(self.labels)


def find_files(path: str) -> list[Path]:
    """The files that `path` names; in a folder train.txt, or else the day files in order of their days.

    FileNotFoundError where a folder holds none, ValueError where it holds both.
    """
    files: list[Path] = []
    for given in existing_paths(path):
        files += _files_in(given) if given.is_dir() else [given]
    return files


def _files_in(folder: Path) -> list[Path]:
    names = [file for file in folder.iterdir() if file.is_file()]
    days = {int(match[1]): file for file in sorted(names) if (match := _DAY.fullmatch(file.name))}
    train = [file for file in names if file.name in ("train.txt", "train.txt.gz")]
    if not train and not days:
        raise FileNotFoundError(
            f"{folder} holds neither train.txt nor day_0 ... day_23 (plain or .gz): give path= the files"
        )
    if len(train) + bool(days) > 1:
        found = ", ".join(str(file) for file in [*train, *days.values()])
        raise ValueError(f"{folder} holds several data sets: give path= the files of one of {found}")
    return train or [days[day] for day in sorted(days)]


def load_clicks(files: Sequence[Path], cache_dir: Path) -> Clicks:
    """The samples of all `files`: read once, then mapped from the cache.

    ValueError for a malformed file, with file and line; then nothing is left in the cache.
    """

    def build(folder: Path) -> None:
        write_clicks(files, folder)

    folder = prepared(cache_dir, "criteo", files, {"version": FORMAT_VERSION}, build)
    return Clicks(*(mapped(folder / f"{name}.npy") for name in ("labels", "dense", "categories", "missing")))


def write_clicks(files: Sequence[Path], folder: Path, block_bytes: int = BLOCK_BYTES) -> None:
    """The arrays of `Clicks`, one .npy file each, in one pass; memory is bounded by a block."""
    with (
        NpyWriter(folder / "labels.npy", np.uint8) as labels,
        NpyWriter(folder / "dense.npy", np.float32, (CRITEO_NUM_DENSE,)) as dense,
        NpyWriter(folder / "categories.npy", np.uint32, (CRITEO_NUM_FIELDS,)) as categories,
        NpyWriter(folder / "missing.npy", np.uint32) as missing,
    ):
        for file in files:
            for block in read_blocks(file, FORM, block_bytes):
                labels.append(block.column(_LABEL).to_numpy())
                dense.append(_dense_of(block))
                try:
                    values, blanks = _categories_of(block)
                except ValueError as error:
                    raise located(file, FORM, error) from error
                categories.append(values)
                missing.append(blanks)


def _dense_of(block: pa.RecordBatch) -> NDArray[np.float32]:
    values = np.empty((block.num_rows, len(_DENSE)), dtype=np.float32)
    for index, name in enumerate(_DENSE):
        filled = pa.compute.fill_null(block.column(name), 0).to_numpy()
        values[:, index] = np.log1p(np.maximum(filled, 0))
    return values


def _categories_of(block: pa.RecordBatch) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    values = np.empty((block.num_rows, len(_CATEGORIES)), dtype=np.uint32)
    missing = np.zeros(block.num_rows, dtype=np.uint32)
    for index, name in enumerate(_CATEGORIES):
        values[:, index], is_blank = parse_hexadecimal(block.column(name))
        missing |= is_blank.astype(np.uint32) << np.uint32(index)
    return values, missing
