"""What a worker of a distributed test does: build a method and step it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from baselines import registry
from baselines.interface import Setup
from baselines.torchrec_runner import TorchRecRunner
from nestpipe.optim import SparseOptimizer
from tests.baselines.models import Case

DENSE_LR = 1e-2

State = dict[str, torch.Tensor]


def build(
    name: str, case: Case, optimizer: SparseOptimizer, options: Mapping[str, Any] | None = None, **more: Any
) -> TorchRecRunner:
    """The method on the case's model; `more` are fields of `Setup`."""
    setup = Setup(
        model=case.model(),
        sparse_optimizer=optimizer,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
        options=options or {},
        **more,
    )
    runner = registry.get(name).build(setup)
    assert isinstance(runner, TorchRecRunner)
    return runner


def step_until_stop(runner: TorchRecRunner, case: Case, rank: int, num_steps: int) -> list[float]:
    """Losses of the steps that the batches last for."""
    batches = iter([case.batch(step, rank) for step in range(num_steps)])
    losses = []
    while True:
        try:
            losses.append(runner.progress(batches)[0].item())
        except StopIteration:
            return losses


def train(
    rank: int,
    num_workers: int,
    name: str,
    case: Case,
    optimizer: SparseOptimizer,
    num_steps: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[State, list[float]]:
    """A worker's part: rank 0's parameters after the last step, and this worker's losses."""
    runner = build(name, case, optimizer, options)
    losses = step_until_stop(runner, case, rank, num_steps)
    state = runner.state_dict()
    runner.close()
    return state, losses
