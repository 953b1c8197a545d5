"""Checks of distributions; each fails by chance about once in a thousand seeds, and the seeds are fixed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


def normal_cdf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(torch.special.ndtr(torch.from_numpy(x)))


def distance(values: ArrayLike, cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
    """Kolmogorov and Smirnov's distance between a sample and a distribution."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    below = np.arange(len(ordered)) / len(ordered)
    expected = cdf(ordered)
    return float(max((expected - below).max(), (below + 1 / len(ordered) - expected).max()))


def follows(values: ArrayLike, cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> bool:
    """Whether a sample fits a distribution (asymptotic critical value at 0.001)."""
    return distance(values, cdf) < 1.95 / np.sqrt(np.size(np.asarray(values)))


def fits(counts: NDArray[np.int64], expected: NDArray[np.float64] | None = None) -> bool:
    """Pearson's test at about 0.001 that `counts` come from `expected`, or from equal chances."""
    if expected is None:
        expected = np.full(len(counts), counts.sum() / len(counts))
    freedom = len(counts) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # Wilson and Hilferty's normal approximation of the chi-square distribution.
    deviate = (np.cbrt(chi_square / freedom) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom))
    return bool(abs(deviate) < 3.3)


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Slope of the straight line of least squares."""
    return float(np.polyfit(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), 1)[0])
