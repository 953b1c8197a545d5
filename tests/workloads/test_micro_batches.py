"""Every model under the engine: a window of micro-batches trains as the whole batch does."""

from __future__ import annotations

import torch
from torch import nn

from nestpipe import NestPipe, schedules
from nestpipe.optim import RowWiseAdagrad
from tests.distributed import run_workers
from tests.nestpipe.training import difference, weights
from tests.workloads import sequence_models as sequences
from tests.workloads import test_dlrm as clicks
from workloads.interface import SequenceBatch
from workloads.models import dlrm
from workloads.models.configs import DlrmConfig

NUM_STEPS = 3


def models() -> dict[str, tuple[nn.Module, SequenceBatch]]:
    """Each model in float64, the sequence models with sides and dropout, and a batch for it."""
    found: dict[str, tuple[nn.Module, SequenceBatch]] = {}
    for name, (_, build) in sequences.MODELS.items():
        config = sequences.config_of(name, num_heads=2, dropout=0.3, embedding_dropout=0.3, positions=True)
        model = build(config, [sequences.NUM_ITEMS], 2, sequences.SIDES)
        found[name] = model, sequences.uneven_batch(sequences.SIDES)
    model = dlrm.build(DlrmConfig(**clicks.SMALL), clicks.NUM_ROWS, 2, list(clicks.LENGTHS))
    return {**found, "dlrm": (model, clicks.uneven_batch())}


def train(rank: int, num_workers: int) -> dict[str, tuple[float, float]]:
    """By model, how far three micro-batches are from the whole batch: in the weights and in the outputs."""
    differences = {}
    for name in models():
        results = [_trained(name, schedule) for schedule in (schedules.sync(), schedules.nestpipe(3))]
        (state, outputs), (whole_state, whole_outputs) = results
        furthest = max((a - b).abs().max().item() for a, b in zip(outputs, whole_outputs, strict=True))
        differences[name] = (difference(state, whole_state), furthest)
    return differences


def _trained(name: str, schedule: schedules.Schedule) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    model, batch = models()[name]
    with NestPipe(
        model.to(torch.float64),
        sparse_optimizer=RowWiseAdagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        schedule=schedule,
    ) as pipeline:
        batches = iter([batch] * NUM_STEPS)
        outputs = [pipeline.progress(batches)[1] for _ in range(NUM_STEPS)]
        return weights(pipeline.state_dict()), outputs


def test_micro_batches_train_as_the_whole_batch() -> None:
    (differences,) = run_workers(train, 1, timeout_s=60)
    assert set(differences) == {*sequences.MODELS, "dlrm"}
    for name, found in differences.items():
        assert max(found) < 1e-10, name
