"""The metrics of click predictions that several workers hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed import run_workers
from workloads.evaluation.click import evaluate_clicks
from workloads.evaluation.metrics import auc, log_loss, normalised_entropy
from workloads.interface import EvaluationResult, SequenceBatch

NUM_SAMPLES = 63
LARGE_ID = 1 << 62


def predictions() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of few values, so with ties, and labels."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(-4, 5, (NUM_SAMPLES,), generator=generator) / 3
    return logits, torch.randint(2, (NUM_SAMPLES,), generator=generator).float()


def results_of(
    samples: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor
) -> Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]]:
    for part in samples.split(8):
        if len(part):
            keys = KeyedJaggedTensor(keys=["field"], values=part, lengths=torch.ones_like(part))
            batch = SequenceBatch(keys, None, labels[part], part + LARGE_ID)
            yield batch, torch.zeros(()), logits[part].requires_grad_()


def evaluated(rank: int, num_workers: int) -> EvaluationResult:
    """The last of several workers has no samples."""
    logits, labels = predictions()
    sharing = max(1, num_workers - 1)
    own = torch.arange(NUM_SAMPLES)[rank::sharing] if rank < sharing else torch.arange(0)
    group = dist.new_group(backend="gloo") if num_workers > 1 else None
    return evaluate_clicks(results_of(own, logits, labels), group)


def test_equals_the_metrics_of_all_samples_together():
    logits, labels = predictions()
    first, *others = run_workers(evaluated, 3)
    assert first.metrics == {
        "auc": auc(logits, labels),
        "normalised_entropy": normalised_entropy(logits, labels),
        "log_loss": log_loss(logits, labels),
    }
    assert first.metrics == evaluated(0, 1).metrics
    assert first.sample_ids is not None
    assert first.sample_ids.tolist() == list(range(LARGE_ID, LARGE_ID + NUM_SAMPLES))
    assert all((other.metrics, other.sample_ids) == (first.metrics, None) for other in others)


@pytest.mark.parametrize(
    ("logit", "label", "expected"),
    [
        (float("nan"), 1.0, "1 of 63 logits are not finite"),
        (0.3, 0.5, "1 of 63 labels are neither 0 nor 1"),
    ],
)
def test_names_what_is_wrong(logit: float, label: float, expected: str):
    logits, labels = predictions()
    logits[5], labels[5] = logit, label
    with pytest.raises(ValueError, match=expected):
        evaluate_clicks(results_of(torch.arange(NUM_SAMPLES), logits, labels), None)


def test_nothing_held_out():
    with pytest.raises(ValueError, match="no held-out sample"):
        evaluate_clicks(iter([]), None)
