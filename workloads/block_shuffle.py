"""Endless shuffled passes over rows on disk, without an order of all rows in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.jagged import offsets_of, positions_of

BLOCK_ROWS = 1024
BLOCKS_A_GROUP = 64


@dataclass(frozen=True)
class _Pass:
    """The order of one pass over the blocks, and where each group of blocks begins in it."""

    number: int
    blocks: NDArray[np.int64]
    group_starts: NDArray[np.int64]


class BlockShuffledPasses:
    """The endless sequence of the rows 0 to num_rows - 1, all once a pass, by position.

    A pass takes blocks of neighbouring rows in a random order, `blocks_a_group` at a time, and the rows of
    such a group in a random order. So neighbours in the sequence come from all over the file, reading stays
    within a group's rows, and memory is 8 bytes a block and a row of one group. Every order is a function
    of (seed, pass, group).
    """

    def __init__(
        self,
        num_rows: int,
        seed: int,
        *,
        block_rows: int = BLOCK_ROWS,
        blocks_a_group: int = BLOCKS_A_GROUP,
    ) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._block_rows = block_rows
        self._blocks_a_group = blocks_a_group
        self._pass = _Pass(-1, np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._group: tuple[tuple[int, int], NDArray[np.int64]] = ((-1, -1), np.zeros(0, np.int64))

    def range(self, first: int, num: int) -> NDArray[np.int64]:
        """The rows at the positions `first` to `first + num - 1`: [num]."""
        parts = [np.zeros(0, np.int64)]
        while num > 0:
            number, place = divmod(first, self._num_rows)
            starts = self._pass_of(number).group_starts
            group = int(np.searchsorted(starts, place, side="right")) - 1
            inside = place - int(starts[group])
            part = self._rows_of(number, group)[inside : inside + num]
            parts.append(part)
            first, num = first + len(part), num - len(part)
        return np.concatenate(parts)

    def _pass_of(self, number: int) -> _Pass:
        if self._pass.number != number:
            num_blocks = -(-self._num_rows // self._block_rows)
            blocks = np.random.default_rng([self._seed, number]).permutation(num_blocks)
            starts = offsets_of(self._lengths_of(blocks))[: -1 : self._blocks_a_group]
            self._pass = _Pass(number, blocks, starts)
        return self._pass

    def _rows_of(self, number: int, group: int) -> NDArray[np.int64]:
        if self._group[0] != (number, group):
            first = group * self._blocks_a_group
            blocks = self._pass_of(number).blocks[first : first + self._blocks_a_group]
            lengths = self._lengths_of(blocks)
            rows = np.repeat(blocks * self._block_rows, lengths) + positions_of(lengths)
            order = np.random.default_rng([self._seed, number, group]).permutation(len(rows))
            self._group = ((number, group), rows[order])
        return self._group[1]

    def _lengths_of(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of each block: the last one of the file may have fewer."""
        return np.minimum(self._block_rows, self._num_rows - blocks * self._block_rows)
