"""A bound that no order can beat: rows that micro-batches of given sizes ask for at least."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nestpipe.clustering import pair_overlaps
from nestpipe.shared_keys import SharedKeys

_TANGENTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85)


def least_rows(shared: SharedKeys, sizes: Sequence[int]) -> float:
    """The larger of two lower bounds on `SharedKeys.num_rows` over all orders.

    *By key.* A key of frequency f is in at least as many micro-batches as the largest sizes take to hold
    f samples, ceil(f / size) for equal sizes.

    *By sample.* Say that the n samples of a micro-batch that have a key pay 1 / n row each for it: the
    payments of all samples add up to the rows. A sample thus saves x / (x + 1) of a row where x others of
    its micro-batch have the key, and x <= min(f, size) - 1 =: c. The function x / (x + 1) is concave, so
    for each whole number a < c it is at most

        a / (a + 1) + (x - a) / ((a + 1) (a + 2))

    at all whole x >= 0 (the line through its values at a and a + 1), and for a = c at most c / (c + 1).
    For any choice of a for each key, a sample's saving is therefore at most a constant, summed over its
    keys, plus the sum over the other samples j of its micro-batch of w(i, j), the summed slopes
    1 / ((a + 1) (a + 2)) of the keys that it shares with j. It has at most size - 1 others, so the size - 1
    largest w(i, j) bound that sum, whatever the order. The choices tried are a = floor(t c) for several t
    in [0, 1) and a = c; each sample takes the one that bounds it best. Uneven sizes count as the largest.
    """
    sizes = [size for size in sizes if size]
    if len(sizes) < 2 or not len(shared.frequencies):
        return float(shared.num_unique)
    num_alone = shared.num_unique - len(shared.frequencies)
    return num_alone + max(_by_key(shared, sizes), _by_sample(shared, max(sizes)))


def _by_key(shared: SharedKeys, sizes: Sequence[int]) -> float:
    capacity = np.cumsum(sorted(sizes, reverse=True))
    return float((np.searchsorted(capacity, shared.frequencies) + 1).sum())


def _by_sample(shared: SharedKeys, size: int) -> float:
    num_keys = np.bincount(shared.samples, minlength=shared.num_samples)
    most = np.minimum(shared.frequencies, size) - 1
    saved = _summed(shared, most / (most + 1))
    for tangent in _TANGENTS:
        saved = np.minimum(saved, _most_saved(shared, size, np.floor(tangent * most)))
    return float((num_keys - saved).sum())


def _most_saved(shared: SharedKeys, size: int, touching: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each sample saves at most, by the lines through `touching` [num_keys] and the next number."""
    slopes = 1.0 / ((touching + 1) * (touching + 2))
    constants = touching / (touching + 1) - slopes * touching
    ascending = np.sort(pair_overlaps(shared, slopes), axis=1)
    company = ascending[:, shared.num_samples - (size - 1) :].sum(axis=1, dtype=np.float64)
    return _summed(shared, constants) + company


def _summed(shared: SharedKeys, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """`values` [num_keys] summed over each sample's shared keys: [num_samples]."""
    sums = np.bincount(shared.samples, weights=values[shared.keys], minlength=shared.num_samples)
    return sums.astype(np.float64, copy=False)
