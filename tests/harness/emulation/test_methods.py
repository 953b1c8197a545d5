"""Methods train the same on the fabric as on plain gloo, whatever their collectives cost."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from baselines import registry
from baselines.interface import Setup
from harness.emulation.fabric import BACKEND
from harness.emulation.link import Group, LinkCost, free
from nestpipe.optim import RowWiseAdagrad
from tests.baselines.models import Case
from tests.distributed import run_workers
from tests.harness.emulation.workers import fabric

NUM_STEPS = 6


def costs(group: Group) -> LinkCost:
    """A step's rows take some milliseconds; the kinds of groups differ."""
    return {"sharding": LinkCost(800, 0.2), "replica": LinkCost(4000, 0.1)}.get(
        group.kind, LinkCost(500, 0.5)
    )


def _losses(
    rank: int, num_workers: int, name: str, backend: str, with_costs: bool
) -> tuple[list[float], int]:
    with fabric() if backend == BACKEND else nullcontext() as made:
        case = Case("sequence")
        setup = Setup(
            model=case.model(),
            sparse_optimizer=RowWiseAdagrad(0.1),
            dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
            options={"micro_batches": 2},
        )
        runner = registry.get(name).build(setup)
        if made is not None:
            made.take_log()
            made.set_costs(costs if with_costs else free)
        batches = iter([case.batch(step, rank) for step in range(NUM_STEPS)])
        losses: list[float] = []
        try:
            while True:
                losses.append(runner.progress(batches)[0].item())
        except StopIteration:
            runner.drain()
        records = made.take_log() if made is not None else []
        runner.close()
        return losses, len(records)


@pytest.mark.parametrize(
    ("name", "num_workers"),
    [
        ("torchrec", 2),
        ("torchrec-sparse-dist", 2),
        ("2d-sp", 2),
        ("2d-sp", 4),
        ("dbp", 2),
        ("nestpipe", 2),
        ("nestpipe", 3),
    ],
)
def test_losses_are_those_of_gloo(name: str, num_workers: int) -> None:
    def run(*arguments: Any) -> Any:
        return run_workers(_losses, num_workers, name, *arguments)

    expected = [losses for losses, _ in run("gloo", False)]
    assert all(len(losses) == NUM_STEPS for losses in expected)
    for with_costs in (False, True):
        results = run(BACKEND, with_costs)
        assert [losses for losses, _ in results] == expected
        assert all(num_records >= 3 * NUM_STEPS for _, num_records in results)
