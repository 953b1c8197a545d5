"""Metrics of a ranking from the targets' ranks, and of click predictions from logits and labels."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

CUTOFFS = (10, 50)
CLICK_METRICS = ("auc", "normalised_entropy", "log_loss")


def hit_rate(ranks: torch.Tensor, cutoff: int) -> float:
    """Share of `ranks` [n] (from 1) within `cutoff`: mean[rank <= K]."""
    return float((ranks <= cutoff).double().mean())


def ndcg(ranks: torch.Tensor, cutoff: int) -> float:
    """Mean of [rank <= K] / log2(rank + 1) over `ranks` [n]: one relevant item, so its ideal gain is 1."""
    gains = 1.0 / torch.log2(ranks.double() + 1.0)
    return float(torch.where(ranks <= cutoff, gains, 0.0).mean())


def mean_reciprocal_rank(ranks: torch.Tensor) -> float:
    """Mean of 1 / rank over `ranks` [n], without a cutoff."""
    return float((1.0 / ranks.double()).mean())


def ranking_metrics(ranks: torch.Tensor) -> dict[str, float]:
    """hr@10, hr@50, ndcg@10, ndcg@50 and mrr of at least one rank, [n], int64."""
    return {
        **{f"hr@{cutoff}": hit_rate(ranks, cutoff) for cutoff in CUTOFFS},
        **{f"ndcg@{cutoff}": ndcg(ranks, cutoff) for cutoff in CUTOFFS},
        "mrr": mean_reciprocal_rank(ranks),
    }


def auc(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """Area under the ROC curve: the chance that a 1 scores above a 0, a tie counting one half.

    `scores` [n] and `labels` [n], each 0 or 1. Exact, from the sum of the positives' mid-ranks (Mann and
    Whitney); nan where one of the classes is empty.
    """
    positive = labels > 0.5
    num_positive = int(positive.sum())
    num_negative = len(labels) - num_positive
    if num_positive == 0 or num_negative == 0:
        return math.nan
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    # Twice the mean rank (from 1) among equal scores is a whole number, and so is every sum of them.
    doubled = 2 * counts.cumsum(0) - counts + 1
    above = int(doubled[places[positive]].sum()) - num_positive * (num_positive + 1)
    return above / (2 * num_positive * num_negative)


def log_loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean binary cross-entropy in nats of `logits` [n] against `labels` [n], in float64."""
    return float(functional.binary_cross_entropy_with_logits(logits.double(), labels.double()))


def normalised_entropy(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Log loss divided by that of always predicting the mean of `labels` (He et al., ADKDD 2014).

    Below 1: better than the base rate. nan where all labels are equal.
    """
    rate = float(labels.double().mean())
    if rate in (0.0, 1.0):
        return math.nan
    entropy = -(rate * math.log(rate) + (1.0 - rate) * math.log(1.0 - rate))
    return log_loss(logits, labels) / entropy


def click_metrics(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, float]:
    """The CLICK_METRICS of at least one sample, in their order; `logits` and `labels` [n]."""
    return auc(logits, labels), normalised_entropy(logits, labels), log_loss(logits, labels)
