"""Exact draws from a Zipf distribution over many rows, in constant time a draw: with a table, or without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.hashing import UInt64, hash_stream, uniform

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class ZipfRanks:
    """Zipf draws of ranks 0 to num_rows - 1 that need no table, for as many rows as one likes.

    Rejection-inversion (Hoermann and Derflinger, ACM TOMACS 1996): the density x ** -exponent is inverted
    in closed form, the draw rounded, and accepted where it lies under the step of its rank.
    """

    num_rows: int
    exponent: float

    def draw(self, hashes: UInt64) -> NDArray[np.int64]:
        """One rank a hash, any shape."""
        flat = hashes.reshape(-1)
        ranks, accepted = self._attempt(flat)
        pending = np.flatnonzero(~accepted)
        attempt = 1
        while len(pending):
            again = hash_stream(flat[pending], np.full(len(pending), attempt, dtype=np.int64))
            ranks[pending], accepted = self._attempt(again)
            pending = pending[~accepted]
            attempt += 1
        return ranks.reshape(hashes.shape)

    def _attempt(self, hashes: UInt64) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """A rank a hash, and whether it is accepted."""
        # Rank k, from 1, owns the area from k - 1/2 to k + 1/2 of the density; the first only as much as it
        # weighs, so that no draw falls in front of it.
        first = self._area(np.array([1.5])) - 1.0
        last = self._area(np.array([self.num_rows + 0.5]))
        area = last + uniform(hashes) * (first - last)
        x = self._inverse(area)
        rank = np.clip(np.rint(x), 1.0, self.num_rows)
        accepted = area >= self._area(rank + 0.5) - rank**-self.exponent
        return rank.astype(np.int64) - 1, accepted

    def _area(self, x: Floats) -> Floats:
        """Integral of t ** -exponent from 1 to x, (x ** (1 - s) - 1) / (1 - s), or log x for s = 1."""
        logarithm = np.log(x)
        scaled = (1.0 - self.exponent) * logarithm
        return logarithm * _ratio(np.expm1, scaled)

    def _inverse(self, area: Floats) -> Floats:
        """The x of an `_area`."""
        scaled = np.maximum((1.0 - self.exponent) * area, -1.0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(area * _ratio(np.log1p, scaled)))


def _ratio(function: np.ufunc, t: Floats) -> Floats:
    """function(t) / t, 1 at t = 0, for expm1 and log1p."""
    is_zero = t == 0.0
    return np.where(is_zero, 1.0, function(t) / np.where(is_zero, 1.0, t))


_FEWEST_ACCESSES = 10
_FEWEST_RANKS = 10
_LARGEST_EXPONENT = 10.0


def fit_exponent(counts: NDArray[np.int64]) -> float | None:
    """Maximum likelihood of a Zipf exponent, given how often each row was drawn, in any order.

    Rows are ranked by their counts, and the fit takes the ranks from 1 to the last with 10 draws or more, as
    below that the order is noise: the exponent s at which the mean logarithm of a rank, expected under
    r ** -s on these ranks, is the observed one. None for fewer than 10 such ranks.
    """
    frequent = np.sort(counts[counts >= _FEWEST_ACCESSES])[::-1]
    if len(frequent) < _FEWEST_RANKS:
        return None
    logarithms = np.log(np.arange(1, len(frequent) + 1))
    observed = float(frequent @ logarithms) / float(frequent.sum())
    low, high = 0.0, _LARGEST_EXPONENT
    for _ in range(50):
        middle = (low + high) / 2
        weights = np.exp(-middle * logarithms)
        if weights @ logarithms / weights.sum() > observed:
            low = middle
        else:
            high = middle
    return low
