"""Whether ratios have shifted: a rank test that knows that rounds of one launch are not independent.

Rounds of a launch share its processes, its memory and the mood of its neighbours, so a launch of k rounds
says less than k independent values. How much less is the design effect 1 + (k - 1) ICC, where the
intraclass correlation comes from a one-way analysis of variance of the ranks by launch (Rosner and Grove,
Statistics in Medicine 18, 1999, correct the Mann-Whitney test alike). The corrected statistic is compared
with Student's t, whose degrees of freedom are the launches less two: few launches make a cautious test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

ALPHA = 0.01
"""Chance of calling an unchanged ratio shifted in the direction asked for."""
MIN_LAUNCHES = 5
"""In both samples together: below, nothing is known of how launches differ."""

Launches = Sequence[Sequence[float]]
"""A value a round, by launch."""


@dataclass(frozen=True)
class Shift:
    """How far a sample lies above another, as fractions: 0.1 is 10 % more."""

    effect: float
    """The Hodges-Lehmann estimate: the median of all ratios between the two samples, less 1."""
    low: float
    high: float
    """What the effect is between, at ALPHA to either side."""
    p_slower: float
    """That values this much larger come from launches of the same kind; one-sided."""
    p_faster: float
    """Likewise for smaller ones."""


def shift(reference: Launches, now: Launches) -> Shift:
    """Compare positive values of two sets of launches; ValueError for too few launches."""
    num_launches = len(reference) + len(now)
    if num_launches < MIN_LAUNCHES or not reference or not now:
        raise ValueError(f"{num_launches} launches in all are too few to compare: {MIN_LAUNCHES} are needed")
    before, after = (
        np.log(np.concatenate([np.asarray(x, float) for x in part])) for part in (reference, now)
    )
    pairs = len(before) * len(after)
    statistic = stats.mannwhitneyu(after, before, method="asymptotic").statistic
    # Ties are rare among measured times; without their correction the spread is a little too large.
    spread = math.sqrt(pairs * (len(before) + len(after) + 1) / 12 * design_effect(reference, now))
    score = (statistic - pairs / 2) / spread
    degrees = num_launches - 2
    # The differences that the corrected test would not reject at either side (Hollander and Wolfe, 4.3).
    differences = np.sort(np.subtract.outer(after, before), axis=None)
    rank = math.floor(pairs / 2 - float(stats.t.isf(ALPHA, degrees)) * spread)
    low, high = -math.inf, math.inf
    if rank >= 0:
        low, high = float(differences[rank]), float(differences[pairs - 1 - rank])
    return Shift(
        effect=math.expm1(float(np.median(differences))),
        low=math.expm1(low),
        high=math.expm1(high),
        p_slower=float(stats.t.sf(score, degrees)),
        p_faster=float(stats.t.cdf(score, degrees)),
    )


def design_effect(reference: Launches, now: Launches) -> float:
    """How many rounds count as one independent value; at least 1.

    Each sample's ranks are taken within it, so that a shift between them is no difference of launches.
    """
    ranked = [ranks for part in (reference, now) for ranks in _ranks_within(part)]
    num_values = sum(map(len, ranked))
    num_groups = len(ranked)
    between = sum(len(ranks) * float(np.mean(ranks)) ** 2 for ranks in ranked)
    within = sum(float(np.sum((ranks - np.mean(ranks)) ** 2)) for ranks in ranked)
    if num_values <= num_groups or within <= 0:
        # One value a launch, or none that differs from its launch's others: then only launches count.
        return num_values / num_groups if between > 0 else 1.0
    mean_square_between = between / max(1, num_groups - 2)
    mean_square_within = within / (num_values - num_groups)
    size = num_values / num_groups
    correlation = (mean_square_between - mean_square_within) / (
        mean_square_between + (size - 1) * mean_square_within
    )
    return 1.0 + (size - 1.0) * max(0.0, correlation)


def _ranks_within(launches: Launches) -> list[np.ndarray]:
    """Ranks of each launch's values among all of its sample, scaled to lie around 0."""
    values = np.concatenate([np.asarray(launch, dtype=float) for launch in launches])
    ranks = (stats.rankdata(values) - (len(values) + 1) / 2) / len(values)
    return list(np.split(ranks, np.cumsum([len(launch) for launch in launches])[:-1]))
