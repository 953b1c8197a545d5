"""Who has joined which collective of a group, and when: a board in memory that its processes share.

Every member writes down the time before it hands a collective to the real backend. What a collective
tells a member arrives later than its peers' stamps, so a member that has its result can read when the
last peer joined, without a message of its own and without the real transfer's time in it. A member whose
peers are missing can read who they are. Times are perf_counter's, a clock that all processes of a
machine share (CLOCK_MONOTONIC on Linux).
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed import Store

NUM_SLOTS = 256
"""Collectives that a member may be ahead of one that another member has yet to look up."""
_CELL_BYTES = 8


class JoinBoard:
    """Join times of a group's latest collectives, which count from 1; a row a slot, a column a member.

    A collective reads a handful of cells, for which plain lists are faster than arrays.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int) -> None:
        num_bytes = _CELL_BYTES * NUM_SLOTS * size
        self._numbers = memoryview(memory)[:num_bytes].cast("q")
        self._times_s = memoryview(memory)[num_bytes:].cast("d")
        self._rank = rank
        self._size = size

    def stamp(self, number: int, time_s: float) -> None:
        """This member joins collective `number` now."""
        cell = number % NUM_SLOTS * self._size + self._rank
        self._times_s[cell] = time_s
        self._numbers[cell] = number

    def joined_s(self, number: int, members: Sequence[int] | None = None) -> float | None:
        """When the last of `members` (None: of all) joined; None while one has not.

        A member that has reused its slot since joined long ago and does not count.
        """
        numbers = self._row(self._numbers, number)
        if members is None and numbers.count(number) == self._size:
            return max(self._row(self._times_s, number))
        members = range(self._size) if members is None else members
        if any(numbers[member] < number for member in members):
            return None
        times_s = self._row(self._times_s, number)
        current = [times_s[member] for member in members if numbers[member] == number]
        return max(current, default=None)

    def missing(self, number: int) -> list[int]:
        """Members that have not joined collective `number`."""
        return [rank for rank, seen in enumerate(self._row(self._numbers, number)) if seen < number]

    def _row(self, cells: Any, number: int) -> list[Any]:
        first = number % NUM_SLOTS * self._size
        return cells[first : first + self._size].tolist()


def _board_bytes(size: int) -> int:
    return 2 * _CELL_BYTES * NUM_SLOTS * size


def open_board(store: Store, rank: int, size: int) -> JoinBoard:
    """The board of a group, found through the group's store; called once by each member.

    Raises ValueError where a member runs on another machine. The file behind the board has no name any
    more once every member has opened it.
    """
    if rank == 0:
        descriptor, name = tempfile.mkstemp(prefix="fabric-")
        os.ftruncate(descriptor, _board_bytes(size))
        store.set("board", name)
    else:
        name = store.get("board").decode()
        try:
            descriptor = os.open(name, os.O_RDWR)
        except FileNotFoundError:
            raise ValueError(
                f"rank {rank} of the group cannot open {name}, which rank 0 has made: the emulated fabric "
                "needs all workers on one machine"
            ) from None
    try:
        memory = mmap.mmap(descriptor, _board_bytes(size))
    finally:
        os.close(descriptor)
    if store.add("opened", 1) == size:
        Path(name).unlink()
    return JoinBoard(memory, rank, size)
