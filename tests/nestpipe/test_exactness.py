"""Every schedule against an independent single-process computation, and against each other."""

from __future__ import annotations

import pytest
import torch

from nestpipe import schedules
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer
from tests.distributed import run_workers
from tests.nestpipe.models import Data
from tests.nestpipe.reference import train as reference
from tests.nestpipe.training import build, difference, step_until_stop, train

NUM_STEPS = 12
OPTIMIZERS = [RowWiseAdagrad(lr=0.05), SGD(lr=0.3), Adagrad(lr=0.05), Adam(lr=0.01)]
NAMED = {
    "sync": schedules.sync(),
    "dbp": schedules.dbp(),
    "fwp": schedules.fwp(4),
    "nestpipe": schedules.nestpipe(4),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_every_schedule_computes_the_reference(num_workers: int, optimizer: SparseOptimizer) -> None:
    data = Data(dtype=torch.float64)
    expected = reference(data, optimizer, num_workers, NUM_STEPS)
    results = run_workers(train, num_workers, data, NAMED, optimizer, NUM_STEPS)
    for name, (state, losses) in results[0].items():
        assert len(losses) == NUM_STEPS
        assert difference(state, expected) < 1e-12, name
    assert torch.equal(
        torch.cat([t.view(-1) for t in results[0]["dbp"][0].values()]),
        torch.cat([t.view(-1) for t in results[0]["sync"][0].values()]),
    )
    assert all(result["dbp"][0] == {} for result in results[1:])


@pytest.mark.parametrize("keys", ["equal", "distinct", "none_on_last_rank", "zero_feature"])
def test_awkward_keys(keys: str) -> None:
    data = Data(keys=keys, dtype=torch.float64)
    optimizer = RowWiseAdagrad(lr=0.05)
    expected = reference(data, optimizer, 2, NUM_STEPS)
    for name, (state, _) in run_workers(train, 2, data, NAMED, optimizer, NUM_STEPS)[0].items():
        assert difference(state, expected) < 1e-12, name


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:2], ids=lambda o: type(o).__name__)
def test_float32_classes(optimizer: SparseOptimizer) -> None:
    data = Data()
    results = run_workers(train, 2, data, NAMED, optimizer, 50)[0]
    sync, losses = results["sync"]
    assert results["dbp"][1] == losses
    assert all(torch.equal(results["dbp"][0][name], sync[name]) for name in sync)
    assert difference(results["fwp"][0], sync) < 2e-6
    assert difference(results["nestpipe"][0], sync) < 2e-6


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_rows_of_sixteen_bits_keep_a_state_of_thirty_two(optimizer: SparseOptimizer) -> None:
    data = Data(dtype=torch.bfloat16)
    states = []
    for schedule in (schedules.sync(), schedules.dbp()):
        with build(data, schedule, optimizer) as pipeline:
            step_until_stop(pipeline, data.batches(0, 1, 5))
            states.append(pipeline.state_dict())
    rows = {name for name in states[0] if "embedding" in name and not name.startswith("optimizer.")}
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
        if name in rows:
            assert tensor.dtype is torch.bfloat16
        elif "embedding" in name:
            assert tensor.dtype is torch.float32
            assert not torch.equal(tensor, tensor.bfloat16().float()), name


@pytest.mark.parametrize("cuts", [1, 3, 11, 16, (1, 2, 4, 2, 1), (5, 1)], ids=str)
def test_any_cut_of_the_window(cuts: int | tuple[int, ...]) -> None:
    data = Data(dtype=torch.float64, num_samples=11)
    optimizer = RowWiseAdagrad(lr=0.05)
    expected = reference(data, optimizer, 2, NUM_STEPS)
    named = {"fwp": schedules.fwp(cuts), "nestpipe": schedules.nestpipe(cuts)}
    for name, (state, _) in run_workers(train, 2, data, named, optimizer, NUM_STEPS)[0].items():
        assert difference(state, expected) < 1e-12, name


@pytest.mark.parametrize("num_samples", [1, 63])
def test_batch_sizes(num_samples: int) -> None:
    data = Data(dtype=torch.float64, num_samples=num_samples)
    optimizer = RowWiseAdagrad(lr=0.05)
    expected = reference(data, optimizer, 2, 6)
    for name, (state, _) in run_workers(train, 2, data, NAMED, optimizer, 6)[0].items():
        assert difference(state, expected) < 1e-12, name


def test_clustering_changes_no_result() -> None:
    data = Data(dtype=torch.float64, num_samples=24)
    optimizer = RowWiseAdagrad(lr=0.05)
    expected = reference(data, optimizer, 2, NUM_STEPS)
    for clustering in ("key-centric", None):
        results = run_workers(
            train, 2, data, {"nestpipe": NAMED["nestpipe"]}, optimizer, NUM_STEPS, {"clustering": clustering}
        )
        assert difference(results[0]["nestpipe"][0], expected) < 1e-12


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
def test_uniemb_is_one_step_stale_and_loses_no_update(optimizer: SparseOptimizer) -> None:
    data = Data(dtype=torch.float64)
    state, _ = run_workers(train, 2, data, {"uniemb": schedules.uniemb()}, optimizer, NUM_STEPS)[0]["uniemb"]
    assert difference(state, reference(data, optimizer, 2, NUM_STEPS, staleness=1)) < 1e-12
    assert difference(state, reference(data, optimizer, 2, NUM_STEPS)) > 1e-3
