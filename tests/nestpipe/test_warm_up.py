"""What happens on an accelerator before the lanes start: in one order, and without a trace in the tables."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nestpipe import Adam, schedules
from nestpipe.schedule import Schedule
from nestpipe.transport import Transport
from tests.distributed import run_workers
from tests.nestpipe.fake_accelerator import stand_in
from tests.nestpipe.models import Data
from tests.nestpipe.training import State, build, step_until_stop, weights

DATA = Data(dtype=torch.float64)
OPTIMIZER = Adam(lr=0.05, weight_decay=0.1)
OPS = ("bucketize", "copy_rows", "expand", "gather", "row_update", "scatter_add")
"""All but those of the model's own computation."""


def _count(patch: pytest.MonkeyPatch, kinds: list[str]) -> None:
    """Note each collective with its group's size, and each op."""

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(transport: Transport, *arguments: Any, **options: Any) -> Any:
            kinds.append(f"{name} of {transport.size}")
            return original(transport, *arguments, **options)

        return noted

    for name in ("all_to_all", "all_reduce"):
        patch.setattr(Transport, name, noting(name, getattr(Transport, name)))

    def choosing(op: str, choose: Callable[..., bool]) -> Callable[..., bool]:
        def chosen(*arguments: Any) -> bool:
            kinds.append(op)
            return choose(*arguments)

        return chosen

    for op in OPS:
        module = importlib.import_module(f"nestpipe.kernels.{op}")
        patch.setattr(module, "uses_triton", choosing(op, module.uses_triton))


def _start(
    rank: int, num_workers: int, schedule: Schedule, options: dict[str, Any]
) -> tuple[State, State, list[str], set[str]]:
    """State as given and after construction, what was done meanwhile, and ops and groups of training."""
    with build(DATA, schedule, OPTIMIZER, **options) as on_cpu:
        given = {name: tensor.clone() for name, tensor in on_cpu.state_dict().items()}
    done: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        _count(patch, done)
        with build(DATA, schedule, OPTIMIZER, **options) as pipeline:
            at_start = list(done)
            found = {name: tensor.clone() for name, tensor in pipeline.state_dict().items()}
            done.clear()
            step_until_stop(pipeline, DATA.batches(rank, num_workers, 4))
    return given, found, at_start, set(done)


@pytest.mark.parametrize(
    ("num_workers", "options"),
    [(1, {}), (3, {}), (4, {"replicas": 2})],
    ids=["alone", "three", "2d"],
)
def test_the_start_comes_to_everything_in_one_order_and_changes_nothing(
    num_workers: int, options: dict[str, Any]
) -> None:
    schedule = schedules.nestpipe(2)
    results = run_workers(_start, num_workers, schedule, options)
    orders = [at_start for _, _, at_start, _ in results]
    assert all(order == orders[0] for order in orders)
    for given, found, at_start, in_training in results:
        assert given.keys() == found.keys()
        assert all(torch.equal(found[name], given[name]) for name in given)
        # The flags of replicas are agreed on among hosts.
        assert in_training <= {*at_start, f"all_reduce of {num_workers}"}
        assert set(OPS) <= set(at_start)
    if num_workers > 1:
        assert weights(results[0][1])


def test_a_cpu_starts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    _count(monkeypatch, done)
    with build(DATA, schedules.nestpipe(2), OPTIMIZER):
        assert done == []


class Counting:
    """An optimizer of a user's own, which must not be called for nothing."""

    lr = 0.1

    def __init__(self) -> None:
        self.num_updates = 0

    def state_widths(self, dim: int) -> dict[str, int]:
        return {}

    def update(self, rows: torch.Tensor, *arguments: Any) -> None:
        self.num_updates += 1


def test_construction_calls_nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    asked: list[int] = []
    optimizer = Counting()

    def factor(step: int) -> float:
        asked.append(step)
        return 1.0

    with torch.no_grad():
        pipeline = build(DATA, schedules.nestpipe(2), optimizer, sparse_lr_factor=factor)
    with pipeline:
        assert (optimizer.num_updates, asked) == (0, [])
        step_until_stop(pipeline, DATA.batches(0, 1, 2))
        assert optimizer.num_updates > 0
        assert set(asked) == {0, 1}
