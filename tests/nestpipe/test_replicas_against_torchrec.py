"""The 2D method of the engine against TorchRec's own two-dimensional sparse parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baselines import registry
from baselines.interface import Setup
from nestpipe.optim import SGD, RowWiseAdagrad, SparseOptimizer
from tests.distributed import run_workers
from tests.nestpipe.models import Data, Model
from tests.nestpipe.training import DENSE_LR, State, difference

ADAGRAD = RowWiseAdagrad(lr=0.05)
NUM_STEPS = 30


def _train(
    rank: int, num_workers: int, name: str, optimizer: SparseOptimizer, options: dict[str, Any]
) -> tuple[State, str]:
    setup = Setup(
        model=Model(),
        sparse_optimizer=optimizer,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
        options=options,
    )
    runner = registry.get(name).build(setup)
    batches = Data().batches(rank, num_workers, NUM_STEPS + 8)
    for _ in range(NUM_STEPS):
        runner.progress(batches)
    runner.drain()
    result = runner.state_dict(), runner.note
    runner.close()
    return result


@pytest.mark.parametrize("optimizer", [ADAGRAD, SGD(lr=0.1)], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize(("num_workers", "sync_every"), [(2, 1), (4, 1), (4, 3)])
def test_the_method_equals_torchrecs(num_workers: int, sync_every: int, optimizer: SparseOptimizer) -> None:
    options = {"sync_every": sync_every, "micro_batches": 3}
    expected, theirs = run_workers(_train, num_workers, "2d-sp", optimizer, options)[0]
    state, ours = run_workers(_train, num_workers, "nestpipe-2d", optimizer, options)[0]
    assert difference(state, expected) < 1e-5
    assert ours == theirs


def test_the_method_on_one_worker_is_nestpipe() -> None:
    plain, _ = run_workers(_train, 1, "nestpipe", ADAGRAD, {})[0]
    state, note = run_workers(_train, 1, "nestpipe-2d", ADAGRAD, {"replicas": 2})[0]
    assert difference(state, plain) == 0.0
    assert note == "one group of 1, no replicas"
