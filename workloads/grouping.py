"""Interactions grouped by user on disk, for logs that do not fit in memory.

What comes is spilled to one file of records and parted into ranges of user ids, whose bounds come from a
sample; then each range is sorted on its own and appended to the result. Memory is bounded by the rows of a
range (or of one user, where he has more) and by the distinct items, disk by 28 bytes an interaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workloads.cache import temporary_folder
from workloads.ids import IdCounts
from workloads.jagged import offsets_of
from workloads.npy import NpyWriter
from workloads.tables import Chunk

RANGE_ROWS = 1_000_000
_MOST_BOUNDS = 400
_SAMPLE_A_BOUND = 64
_RECORD = np.dtype([("user", np.int64), ("item", np.int64), ("time", np.int64), ("action", np.float32)])
Records = NDArray[np.void]


def write_histories(
    chunks: Iterable[Chunk],
    folder: Path,
    *,
    times_a_second: int,
    ties_by_item: bool,
    range_rows: int = RANGE_ROWS,
) -> None:
    """The files of `Histories` from interactions in any order; `time` counts `times_a_second` to the second.

    Users and items are numbered by their ids, ascending. Interactions of a user at the same time stay in
    the order of the chunks, or go by the source's item id where `ties_by_item`.
    """
    with temporary_folder(folder) as scratch:
        spilled = scratch / "all"
        item_ids = _spill(chunks, spilled)
        np.save(folder / "item_ids.npy", item_ids)
        users, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        with (
            NpyWriter(folder / "items.npy", np.int64) as items,
            NpyWriter(folder / "timestamps_s.npy", np.int64) as timestamps_s,
            NpyWriter(folder / "actions.npy", np.float32) as actions,
        ):
            for records in _ranges_of_users(spilled, range_rows):
                ordered = _ordered(records, ties_by_item)
                items.append(_numbers_of(ordered["item"], item_ids))
                timestamps_s.append(ordered["time"] // times_a_second)
                actions.append(ordered["action"])
                own_users, own_lengths = np.unique(ordered["user"], return_counts=True)
                users.append(own_users)
                lengths.append(own_lengths)
    np.save(folder / "user_ids.npy", np.concatenate(users))
    np.save(folder / "offsets.npy", offsets_of(np.concatenate(lengths)))


def _spill(chunks: Iterable[Chunk], path: Path) -> NDArray[np.int64]:
    """Write all interactions as records; the distinct item ids, ascending."""
    items = IdCounts()
    with path.open("wb") as file:
        for chunk in chunks:
            records = np.empty(len(chunk["user"]), _RECORD)
            for name in _RECORD.names or ():
                records[name] = chunk[name]
            records.tofile(file)
            items.add(chunk["item"])
    return items.result()[0]


def _ordered(records: Records, ties_by_item: bool) -> Records:
    """The records by user, then time, then item where ties go by it, else in their order."""
    keys = ("item", "time", "user") if ties_by_item else ("time", "user")
    return records[np.lexsort([records[key] for key in keys])]


def _numbers_of(ids: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of `ids` [n] stands in `known`, ascending: [n]."""
    # Only distinct ids are searched for: they are few, and ascending ones keep to the processor's cache.
    codes, distinct = pd.factorize(ids, sort=True)
    numbers: NDArray[np.int64] = np.searchsorted(known, distinct)[codes]
    return numbers


def _ranges_of_users(path: Path, range_rows: int) -> Iterator[Records]:
    """The records of a file in their order, range of users by range of users, ascending; removes the file."""
    if path.stat().st_size <= range_rows * _RECORD.itemsize:
        yield np.fromfile(path, _RECORD)
        path.unlink()
        return
    parts = _parted(path, _bounds_of(path, range_rows), range_rows)
    path.unlink()
    for part, has_one_user in parts:
        if has_one_user:
            yield np.fromfile(part, _RECORD)
            part.unlink()
        else:
            yield from _ranges_of_users(part, range_rows)


def _bounds_of(path: Path, range_rows: int) -> NDArray[np.int64]:
    """First users of the ranges, so that most have fewer than `range_rows` records; ascending.

    A user found at a bound has a range of his own: so the number of users in a range falls at each parting.
    """
    users: Any = np.memmap(path, _RECORD, mode="r")["user"]
    num_bounds = min(_MOST_BOUNDS, 1 + 5 * len(users) // (4 * range_rows))
    places = np.random.default_rng(0).integers(0, len(users), size=num_bounds * _SAMPLE_A_BOUND)
    found = np.sort(users[np.sort(places)])[::_SAMPLE_A_BOUND]
    below_last = found[found < np.iinfo(np.int64).max]
    return np.unique(np.concatenate([found, below_last + 1]))


def _parted(path: Path, bounds: NDArray[np.int64], block_rows: int) -> list[tuple[Path, bool]]:
    """The file's records in a file a range, in their order, and whether a range has one user alone."""
    lowest = np.full(len(bounds) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(bounds) + 1, np.iinfo(np.int64).min)
    with path.open("rb") as file:
        while len(records := np.fromfile(file, _RECORD, block_rows)):
            part_of = np.searchsorted(bounds, records["user"], side="right").astype(np.uint16)
            order = np.argsort(part_of, kind="stable")
            records, starts = records[order], np.searchsorted(part_of[order], np.arange(len(bounds) + 2))
            for part in np.flatnonzero(np.diff(starts)).tolist():
                own = records[starts[part] : starts[part + 1]]
                lowest[part] = min(lowest[part], own["user"].min())
                highest[part] = max(highest[part], own["user"].max())
                # Opened anew each time: there are more parts than files that a process may keep open.
                with _part(path, part).open("ab") as target:
                    own.tofile(target)
    present = np.flatnonzero(lowest <= highest).tolist()
    return [(_part(path, part), bool(lowest[part] == highest[part])) for part in present]


def _part(path: Path, part: int) -> Path:
    return path.with_name(f"{path.name}-{part}")
