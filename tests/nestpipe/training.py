"""What a worker of an engine test does: build a pipeline, step it, read it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nestpipe import NestPipe
from nestpipe.optim import SparseOptimizer
from nestpipe.schedule import Schedule
from tests.nestpipe.models import Batch, Data, Model

DENSE_LR = 1e-2
State = dict[str, torch.Tensor]


def build(data: Data, schedule: Schedule, optimizer: SparseOptimizer, **options: Any) -> NestPipe:
    return NestPipe(
        Model().to(data.dtype),
        sparse_optimizer=optimizer,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
        schedule=schedule,
        **options,
    )


def step_until_stop(pipeline: NestPipe, batches: Iterator[Batch]) -> list[float]:
    losses = []
    while True:
        try:
            losses.append(pipeline.progress(batches)[0].item())
        except StopIteration:
            return losses


def weights(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if not name.startswith("optimizer.")}


def train(
    rank: int,
    num_workers: int,
    data: Data,
    schedules: dict[str, Schedule],
    optimizer: SparseOptimizer,
    num_steps: int,
    options: dict[str, Any] | None = None,
) -> dict[str, tuple[State, list[float]]]:
    """State on rank 0 and this worker's losses, by the schedule's key."""
    results = {}
    for name, schedule in schedules.items():
        with build(data, schedule, optimizer, **(options or {})) as pipeline:
            losses = step_until_stop(pipeline, data.batches(rank, num_workers, num_steps))
            results[name] = (weights(pipeline.state_dict()), losses)
    return results


def difference(a: State, b: State) -> float:
    """Largest difference of any parameter, relative to that parameter's largest weight."""
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max() / b[n].abs().max()) for n in a)
