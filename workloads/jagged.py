"""Arithmetic on jagged rows: where each token sits when `lengths` tokens follow each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def offsets_of(lengths: Ints) -> Ints:
    """Start of each row and, last, the total: [n] -> [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def positions_of(lengths: Ints) -> Ints:
    """Position of each token inside its row: [n] -> [lengths.sum()]."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], lengths)


def sums_of(values: Ints, lengths: Ints) -> Ints:
    """Sum of each row's values, 0 for an empty row: [lengths.sum()], [n] -> [n]."""
    totals = offsets_of(values)
    offsets = offsets_of(lengths)
    return totals[offsets[1:]] - totals[offsets[:-1]]
