"""The engine against the real TorchRec library on the same batches."""

from __future__ import annotations

import pytest
import torch

from baselines import registry
from baselines.interface import Setup
from nestpipe.optim import SGD, RowWiseAdagrad, SparseOptimizer
from tests.distributed import run_workers
from tests.nestpipe.models import Data, Model
from tests.nestpipe.training import DENSE_LR, State, difference

NUM_STEPS = 50


def _train(rank: int, num_workers: int, name: str, optimizer: SparseOptimizer) -> State:
    data = Data()
    setup = Setup(
        model=Model(),
        sparse_optimizer=optimizer,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
    )
    runner = registry.get(name).build(setup)
    batches = data.batches(rank, num_workers, NUM_STEPS + 8)
    for _ in range(NUM_STEPS):
        runner.progress(batches)
    runner.drain()
    state = runner.state_dict()
    runner.close()
    return state


@pytest.mark.parametrize("optimizer", [RowWiseAdagrad(lr=0.05), SGD(lr=0.1)], ids=lambda o: type(o).__name__)
def test_nestpipe_equals_torchrec_after_fifty_steps(optimizer: SparseOptimizer) -> None:
    expected = run_workers(_train, 2, "torchrec", optimizer)[0]
    initial = Model().state_dict()
    assert difference(expected, {n: initial[n] for n in expected}) > 0.1  # the weights have moved
    for name in ("sync", "nestpipe"):
        assert difference(run_workers(_train, 2, name, optimizer)[0], expected) < 1e-5, name
