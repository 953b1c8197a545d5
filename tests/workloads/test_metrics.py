"""Metrics against their definitions, written out pair by pair and sample by sample."""

import math

import pytest
import torch

from workloads.evaluation.metrics import auc, log_loss, normalised_entropy, ranking_metrics


def test_ranking_metrics_by_hand():
    metrics = ranking_metrics(torch.tensor([1, 3, 10, 11, 50, 51, 1000]))
    assert metrics["hr@10"] == pytest.approx(3 / 7, abs=1e-15)
    assert metrics["hr@50"] == pytest.approx(5 / 7, abs=1e-15)
    within_10 = 1.0 + 0.5 + 1 / math.log2(11)
    assert metrics["ndcg@10"] == pytest.approx(within_10 / 7, abs=1e-15)
    within_50 = within_10 + 1 / math.log2(12) + 1 / math.log2(51)
    assert metrics["ndcg@50"] == pytest.approx(within_50 / 7, abs=1e-15)
    assert metrics["mrr"] == pytest.approx(
        (1 + 1 / 3 + 1 / 10 + 1 / 11 + 1 / 50 + 1 / 51 + 1 / 1000) / 7, abs=1e-15
    )


def area_by_pairs(scores: list[float], labels: list[float]) -> float:
    positives = [score for score, label in zip(scores, labels, strict=True) if label == 1]
    negatives = [score for score, label in zip(scores, labels, strict=True) if label == 0]
    won = sum((high > low) + 0.5 * (high == low) for high in positives for low in negatives)
    return won / (len(positives) * len(negatives))


@pytest.mark.parametrize("num_values", [1, 3, 1000])
@pytest.mark.parametrize("num_samples", [2, 63, 500])
def test_auc_counts_pairs_and_halves_ties(num_values: int, num_samples: int):
    generator = torch.Generator().manual_seed(num_samples)
    scores = torch.randint(num_values, (num_samples,), generator=generator).double() / 7
    labels = torch.randint(2, (num_samples,), generator=generator).double()
    labels[:2] = torch.tensor([0.0, 1.0])
    assert auc(scores, labels) == pytest.approx(area_by_pairs(scores.tolist(), labels.tolist()), abs=1e-14)


def test_normalised_entropy_is_the_loss_over_that_of_the_base_rate():
    logits = torch.tensor([-30.0, 0.2, 1.5, 40.0, -0.7], dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0])
    chances = [1 / (1 + math.exp(-logit)) for logit in logits.tolist()]
    losses = [-math.log(p if label else 1 - p) for p, label in zip(chances, labels.tolist(), strict=True)]
    entropy = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    assert log_loss(logits, labels) == pytest.approx(sum(losses) / 5, abs=1e-12)
    assert normalised_entropy(logits, labels) == pytest.approx(sum(losses) / 5 / entropy, abs=1e-12)
    base_rate = torch.full((5,), math.log(0.6 / 0.4), dtype=torch.float64)
    assert normalised_entropy(base_rate, labels) == pytest.approx(1.0, abs=1e-15)


def test_one_class_alone_has_neither():
    for labels in (torch.zeros(3), torch.ones(3)):
        assert math.isnan(auc(torch.arange(3.0), labels))
        assert math.isnan(normalised_entropy(torch.arange(3.0), labels))
