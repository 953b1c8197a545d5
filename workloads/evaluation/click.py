"""The evaluation of click models: AUC and normalised entropy of held-out samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.distributed import ProcessGroup

from workloads.evaluation.metrics import CLICK_METRICS, click_metrics
from workloads.evaluation.workers import Workers
from workloads.interface import EvaluationResult, SequenceBatch


def evaluate_clicks(
    results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]], group: ProcessGroup | None
) -> EvaluationResult:
    """A collective: AUC, normalised entropy and log loss of the logits [num_samples] in `results`.

    The arguments are those of `Evaluable.evaluate`. The metrics are exact: rank 0 gathers every sample's
    id, logit and label, 24 bytes a sample. ValueError on every worker where nothing was evaluated, a logit
    is not finite or a label is neither 0 nor 1.
    """
    workers = Workers(group)
    ids, predictions = _collected(results)
    _check(predictions, workers)
    all_ids, all_predictions = workers.gather(ids), workers.gather(predictions)
    values = torch.zeros(len(CLICK_METRICS), dtype=torch.float64)
    if all_ids is not None and all_predictions is not None:
        # In one order whatever the number of workers, and so with the same rounding.
        order = all_ids.argsort(stable=True)
        all_ids, (logits, labels) = all_ids[order], all_predictions[order].unbind(1)
        values = torch.tensor(click_metrics(logits, labels), dtype=torch.float64)
    metrics = dict(zip(CLICK_METRICS, workers.sum(values).tolist(), strict=True))
    return EvaluationResult(metrics=metrics, sample_ids=all_ids)


def _collected(
    results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """This worker's sample ids [n] and, in float64, their logits and labels [n, 2]."""
    ids = [torch.zeros(0, dtype=torch.int64)]
    predictions = [torch.zeros(0, 2, dtype=torch.float64)]
    for batch, _, logits in results:
        ids.append(batch.sample_ids.cpu())
        predictions.append(torch.stack([logits.detach().double(), batch.labels.double()], dim=1).cpu())
    return torch.cat(ids), torch.cat(predictions)


def _check(predictions: torch.Tensor, workers: Workers) -> None:
    logits, labels = predictions.unbind(1)
    infinite, strange = ~logits.isfinite(), (labels != 0) & (labels != 1)
    counts = torch.tensor([len(predictions), int(infinite.sum()), int(strange.sum())])
    num_samples, num_infinite, num_strange = workers.sum(counts).tolist()
    if num_samples == 0:
        raise ValueError("there is no held-out sample to evaluate")
    if num_infinite:
        raise ValueError(
            f"{num_infinite} of {num_samples} logits are not finite: the training has diverged; try a "
            "smaller learning rate or clipping"
        )
    if num_strange:
        raise ValueError(f"{num_strange} of {num_samples} labels are neither 0 nor 1")
