"""Where the meter says that TorchRec's time goes."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from baselines.interface import StepTimes
from baselines.torchrec_hooks import Point, StepHooks
from baselines.torchrec_meter import StepMeter
from baselines.torchrec_state import sharded_modules
from nestpipe.optim import RowWiseAdagrad
from tests.baselines import training
from tests.baselines.models import Case
from tests.distributed import run_workers

METHODS = ["torchrec", "torchrec-nodedup", "torchrec-sparse-dist", "2d-sp"]
PART = {
    Point.PREFETCH: "lookup_ms",
    Point.ROUTE: "lookup_ms",
    Point.RETRIEVE: "lookup_ms",
    Point.WRITE_BACK: "lookup_ms",
    Point.EXCHANGE: "comm_ms",
    Point.REDUCE: "comm_ms",
    Point.REPLICAS: "comm_ms",
}


def spend(milliseconds: float) -> None:
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end:
        pass


class Delay:
    """An observer that spends time at one point, counts all, and notes how many ids were read and written."""

    def __init__(self, point: Point | None = None, milliseconds: float = 0.0) -> None:
        self.point, self.milliseconds = point, milliseconds
        self.entered: Counter[Point] = Counter()
        self.left: Counter[Point] = Counter()
        self.num_ids: Counter[Point] = Counter()

    def enter(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        self.entered[point] += 1
        if features is not None:
            self.num_ids[point] += features.values().numel()

    def leave(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        self.left[point] += 1
        if point is self.point:
            spend(self.milliseconds)


def test_time_belongs_to_the_innermost_point() -> None:
    meter = StepMeter()
    with meter.step():
        spend(2)
        meter.enter(Point.ROUTE, None)
        spend(3)
        meter.enter(Point.EXCHANGE, None)
        spend(5)
        meter.leave(Point.EXCHANGE, None)
        meter.leave(Point.ROUTE, None)
    (step,) = meter.take()
    assert meter.take() == []
    # A loaded machine makes parts longer, never shorter.
    assert step.dense_ms >= 2
    assert step.lookup_ms >= 3
    assert step.comm_ms >= 5
    assert step.lookup_ms + step.comm_ms + step.dense_ms <= step.step_ms + 1e-6


def test_time_between_steps_counts_until_restart() -> None:
    meter = StepMeter()
    with meter.step():
        pass
    spend(20)
    with meter.step():
        pass
    meter.restart()
    spend(20)
    begin = time.perf_counter()
    with meter.step():
        pass
    last_ms = 1e3 * (time.perf_counter() - begin)
    _, second, third = meter.take()
    assert second.step_ms >= 20
    assert second.other_ms >= 20
    assert third.step_ms <= last_ms


def _train_and_stop(meter: StepMeter) -> None:
    with meter.step():
        meter.enter(Point.PREFETCH, None)
        raise StopIteration


def test_a_step_that_stops_leaves_no_entry() -> None:
    meter = StepMeter()
    with pytest.raises(StopIteration):
        _train_and_stop(meter)
    spend(20)
    begin = time.perf_counter()
    with meter.step():
        pass
    longest_ms = 1e3 * (time.perf_counter() - begin)
    (step,) = meter.take()
    assert step.step_ms <= longest_ms


def _times(rank: int, num_workers: int, name: str, num_steps: int) -> list[StepTimes]:
    case = Case("sequence")
    runner = training.build(name, case, RowWiseAdagrad(0.1))
    training.step_until_stop(runner, case, rank, num_steps)
    return runner.step_times()


@pytest.mark.parametrize("name", METHODS)
def test_parts_sum_to_the_step(name: str) -> None:
    for times in run_workers(_times, 2, name, 12):
        assert len(times) == 12
        for step in times:
            assert min(step.lookup_ms, step.comm_ms, step.dense_ms) > 0
            assert step.other_ms >= -1e-6
        explained = [1 - step.other_ms / step.step_ms for step in times]
        assert sorted(explained)[len(explained) // 2] >= 0.97


def _delayed(
    rank: int, num_workers: int, name: str, case: Case, point: Point, milliseconds: float
) -> tuple[StepTimes, Delay]:
    runner = training.build(name, case, RowWiseAdagrad(0.1))
    observer = Delay(point, milliseconds)
    runner.observe(observer)
    training.step_until_stop(runner, case, rank, 4)
    return runner.step_times()[-1], observer


@pytest.mark.parametrize(
    "point", [p for p in Point if p is not Point.REPLICAS], ids=lambda point: point.value
)
@pytest.mark.parametrize(("name", "case"), [("torchrec", "sequence"), ("torchrec-sparse-dist", "pooled")])
def test_time_spent_at_a_point_is_in_its_part(name: str, case: str, point: Point) -> None:
    for times, observer in run_workers(_delayed, 2, name, Case(case), point, 30.0):
        assert observer.entered == observer.left
        assert observer.entered[point] > 0
        if (name, point) != ("torchrec-sparse-dist", Point.PREFETCH):  # has nothing to fetch at the end
            assert getattr(times, PART[point]) >= 30
        # What is read is written, and nothing else carries ids.
        assert observer.num_ids.keys() == {Point.RETRIEVE, Point.WRITE_BACK}
        assert observer.num_ids[Point.RETRIEVE] == observer.num_ids[Point.WRITE_BACK] > 0


def test_averaging_replicas_is_comm() -> None:
    for times, observer in run_workers(_delayed, 2, "2d-sp", Case("sequence"), Point.REPLICAS, 30.0):
        assert observer.entered[Point.REPLICAS] == 4
        assert times.comm_ms >= 30


def _interleaved(rank: int, num_workers: int) -> tuple[Delay, Delay, list[StepTimes]]:
    case = Case("sequence")
    slow = training.build("torchrec", case, RowWiseAdagrad(0.1))
    fast = training.build("torchrec-sparse-dist", case, RowWiseAdagrad(0.1))
    slow_observer, fast_observer = Delay(Point.WRITE_BACK, 200.0), Delay()
    slow.observe(slow_observer)
    fast.observe(fast_observer)
    slow_batches, fast_batches = (iter([case.batch(step, rank) for step in range(8)]) for _ in range(2))
    for _ in range(2):
        slow.progress(slow_batches)
        slow.drain()
        fast.progress(fast_batches)
        fast.progress(fast_batches)
        fast.drain()
    times = fast.step_times()
    assert len(slow.step_times()) == 2
    fast.close()
    counted = fast_observer.entered.total()
    slow.progress(slow_batches)
    assert fast_observer.entered.total() == counted
    return slow_observer, fast_observer, times


def test_each_runner_sees_its_own_steps() -> None:
    for slow, fast, times in run_workers(_interleaved, 2):
        # Two collections, one kernel each.
        assert slow.entered[Point.WRITE_BACK] == 6
        assert fast.entered[Point.WRITE_BACK] == 8
        assert len(times) == 4
        # The first step of the second round would hold the other runner's delay.
        assert times[2].step_ms < 400


def _all_modules(model: DistributedModelParallel) -> list[nn.Module]:
    """Also those that TorchRec keeps in plain lists."""
    inner = [
        m for sharded in sharded_modules(model).values() for m in sharded._lookups + sharded._output_dists
    ]
    return [m for root in [model, *inner] for m in root.modules()]


def _num_hooks(model: DistributedModelParallel) -> int:
    modules = _all_modules(model)
    shadows = [value for module in modules for value in vars(module).values()]
    own = [value for value in shadows if getattr(value, "__module__", "") == StepHooks.__module__]
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules) + len(own)


def _hooks_before_and_after(rank: int, num_workers: int, name: str) -> tuple[int, int]:
    case = Case("sequence")
    runner = training.build(name, case, RowWiseAdagrad(0.1))
    model = runner._model
    training.step_until_stop(runner, case, rank, 2)
    before = _num_hooks(model)
    runner.close()
    return before, _num_hooks(model)


@pytest.mark.parametrize("name", METHODS)
def test_close_leaves_no_hook(name: str) -> None:
    ((before, after),) = run_workers(_hooks_before_and_after, 1, name)
    # Two collections, each with three hooks, a kernel and an output dist; and the model's own.
    assert before == 11
    assert after == 0
