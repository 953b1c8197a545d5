"""How the categories of Criteo's fields become rows of tables. Row 0 of every table stands for a blank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workloads.cache import prepared
from workloads.configs import CRITEO_NUM_FIELDS
from workloads.criteo_files import FORMAT_VERSION, Clicks
from workloads.hashing import UInt64, hash_of, uniform
from workloads.ids import IdCounts
from workloads.npy import mapped

# Which row a category has is a matter of the data, not of the run: these take the place of its seed.
_CATEGORY, _MADE_UP = range(2)
_BLOCK_ROWS = 1 << 18

Ints = NDArray[np.int64]


class Rows(Protocol):
    """A way from categories to rows of the fields' tables."""

    num_rows: tuple[int, ...]
    """Rows of each field's table: [26]."""

    def of(self, categories: NDArray[np.uint32]) -> Ints:
        """The row of each category, where it is not blank: [n, 26] -> [n, 26]."""
        ...


class HashedRows:
    """Row 1 + hash of the category modulo the rest of the table's rows."""

    def __init__(self, hash_rows: Sequence[int]) -> None:
        self.num_rows: tuple[int, ...] = tuple(hash_rows) * (CRITEO_NUM_FIELDS // len(hash_rows))

    def of(self, categories: NDArray[np.uint32]) -> Ints:
        """See `Rows`."""
        fields = np.arange(CRITEO_NUM_FIELDS)
        return _drawn(hash_of(_CATEGORY, fields, categories.astype(np.int64)), self.num_rows)


class Vocabulary:
    """A row for each frequent category of a field, ascending from row 2; row 1 for all others."""

    def __init__(self, known: Sequence[NDArray[np.uint32]]) -> None:
        self._known = known
        self.num_rows = tuple(len(field) + 2 for field in known)

    def of(self, categories: NDArray[np.uint32]) -> Ints:
        """See `Rows`."""
        rows = np.ones(categories.shape, dtype=np.int64)
        for field, known in enumerate(self._known):
            if len(known):
                places = np.searchsorted(known, categories[:, field]).clip(max=len(known) - 1)
                rows[:, field] = np.where(known[places] == categories[:, field], places + 2, 1)
        return rows


class MultiHot:
    """Several rows a sample and field: the one of its category, and more that are made up.

    The files have one category a field. Those rows beyond are a function of field and row alone, so that
    equal categories bring equal bags, as in MLPerf's version of the data.
    """

    def __init__(self, sizes: Sequence[int], num_rows: Sequence[int]) -> None:
        self.sizes = tuple(sizes) or (1,) * CRITEO_NUM_FIELDS
        self._num_rows = num_rows

    def of(self, rows: Ints) -> list[Ints]:
        """The rows of each field: [n, 26] -> [n, size] a field."""
        return [self._of_field(field, size, rows[:, field]) for field, size in enumerate(self.sizes)]

    def _of_field(self, field: int, size: int, rows: Ints) -> Ints:
        made_up = hash_of(_MADE_UP, field, rows[:, np.newaxis], np.arange(1, size))
        return np.concatenate([rows[:, np.newaxis], _drawn(made_up, [self._num_rows[field]])], axis=1)


def _drawn(hashes: UInt64, num_rows: Sequence[int]) -> Ints:
    """Hashes as rows from 1 on, of one table or of one for each index of the last dimension."""
    return 1 + (uniform(hashes) * (np.array(num_rows) - 1)).astype(np.int64)


def load_vocabulary(
    clicks: Clicks, num_training: int, min_frequency: int, files: Sequence[Path], cache_dir: Path
) -> Vocabulary:
    """The categories that at least `min_frequency` of the first `num_training` samples have.

    Counted once, then mapped from the cache; `files` are those that `clicks` come from.
    """

    def build(folder: Path) -> None:
        counts = [IdCounts(np.uint32) for _ in range(CRITEO_NUM_FIELDS)]
        for first in range(0, num_training, _BLOCK_ROWS):
            own = slice(first, min(first + _BLOCK_ROWS, num_training))
            categories, missing = np.asarray(clicks.categories[own]), clicks.missing[own]
            for field, count in enumerate(counts):
                present = missing >> np.uint32(field) & np.uint32(1) == 0
                count.add(categories[present, field])
        for field, count in enumerate(counts):
            ids, frequencies = count.result()
            np.save(folder / f"{field}.npy", ids[frequencies >= min_frequency])

    settings = {"version": FORMAT_VERSION, "training": num_training, "min_frequency": min_frequency}
    folder = prepared(cache_dir, "criteo-vocabulary", files, settings, build)
    return Vocabulary([mapped(folder / f"{field}.npy") for field in range(CRITEO_NUM_FIELDS)])
