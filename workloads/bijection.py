"""A seeded bijection of 0 to num - 1 that needs no table: what a permutation is to a small table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.hashing import UInt64, hash_of

_NUM_ROUNDS = 3


@dataclass(frozen=True)
class Bijection:
    """Spreads 0 to num - 1 over the same numbers, a function of the seed and the coordinates given to `of`.

    Rounds of multiplication by an odd number, addition and a shifted xor, each of them reversible, permute
    the numbers below the next power of two; one that leaves the range goes round again until it is back
    (cycle walking; Black and Rogaway, CT-RSA 2002), on average less than twice.
    """

    num: int
    factors: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, num: int, seed: int, *coordinates: int) -> Bijection:
        """The bijection of `num` numbers for a seed."""
        draws = hash_of(seed, *coordinates, np.arange(2 * _NUM_ROUNDS)).tolist()
        factors = tuple(draw | 1 for draw in draws[:_NUM_ROUNDS])
        return cls(num=num, factors=factors, offsets=tuple(draws[_NUM_ROUNDS:]))

    def at(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The image of each number, any shape."""
        images = self._permuted(numbers.reshape(-1).view(np.uint64))
        outside = np.flatnonzero(images >= self.num)
        while len(outside):
            images[outside] = self._permuted(images[outside])
            outside = outside[images[outside] >= self.num]
        return images.view(np.int64).reshape(numbers.shape)

    def _permuted(self, numbers: UInt64) -> UInt64:
        num_bits = max(1, (self.num - 1).bit_length())
        mask, shift = np.uint64((1 << num_bits) - 1), np.uint64((num_bits + 1) // 2)
        for factor, offset in zip(self.factors, self.offsets, strict=True):
            numbers = (numbers * np.uint64(factor) + np.uint64(offset)) & mask
            numbers ^= numbers >> shift
        return numbers
