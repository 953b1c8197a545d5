"""Exact draws from a Zipf distribution over many rows, in constant time a draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.hashing import UInt64, uniform


def zipf_probabilities(num_rows: int, exponent: float) -> NDArray[np.float64]:
    """P(rank r) proportional to 1 / (r + 1) ** exponent, ranks from 0: [num_rows]."""
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


@dataclass(frozen=True)
class AliasTable:
    """Walker's alias method: column c keeps c with probability `keep[c]`, else gives `alias[c]`.

    Two random reads a draw, where a search of the cumulative distribution takes log2(n).
    """

    keep: NDArray[np.float64]
    alias: NDArray[np.int64]

    @classmethod
    def of(cls, probabilities: NDArray[np.float64]) -> AliasTable:
        """The table of `probabilities` [n], built without a loop over rows.

        Columns below the average are filled in order from those above it, each used until it falls
        below the average itself and is then filled from the next. Who fills whom follows from the
        cumulative deficits and surpluses alone.
        """
        scaled = probabilities * len(probabilities)
        keep, alias = np.ones_like(scaled), np.arange(len(scaled))
        is_large = scaled >= 1.0
        small, large = np.flatnonzero(~is_large), np.flatnonzero(is_large)
        if len(small) and len(large):
            deficit, surplus = np.cumsum(1.0 - scaled[small]), np.cumsum(scaled[large] - 1.0)
            filled_before = np.concatenate(([0.0], deficit[:-1]))
            giver = np.searchsorted(surplus, filled_before, side="left")
            keep[small] = scaled[small]
            alias[small] = large[np.minimum(giver, len(large) - 1)]
            # A large column ends at the first deficit that goes beyond its surplus; the last never does.
            end = np.searchsorted(deficit, surplus[:-1], side="right")
            end = np.minimum(end, len(deficit) - 1)
            keep[large[:-1]] = 1.0 - np.maximum(deficit[end] - surplus[:-1], 0.0)
            alias[large[:-1]] = large[1:]
        return cls(keep=np.clip(keep, 0.0, 1.0), alias=alias)

    def draw(self, hashes: UInt64) -> NDArray[np.int64]:
        """One column a hash: the integer part of u * n chooses it, the fraction is its coin."""
        scaled = uniform(hashes) * len(self.keep)
        column = scaled.astype(np.int64)
        scaled -= column
        return np.where(scaled < self.keep[column], column, self.alias[column])
