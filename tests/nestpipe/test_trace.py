"""The critical path of a step, on made-up events and on a real run."""

from __future__ import annotations

import pytest

from nestpipe import RowWiseAdagrad, Tracer, schedules
from nestpipe.schedule import Op, OpKind, Schedule
from nestpipe.trace import OpEvent, breakdown
from tests.nestpipe.models import Data
from tests.nestpipe.training import build


def _event(ops: dict[str, Op], name: str, started: float, finished: float) -> OpEvent:
    return OpEvent(ops[name], 0.0, started / 1e3, finished / 1e3, finished / 1e3)


def test_exposed_time_follows_what_was_waited_for() -> None:
    ops = {str(op.id): op for step in (0, 1) for op in schedules.fwp(2).ops(step)}
    events = [
        _event(ops, "update(0)", 0, 10),
        _event(ops, "retrieve(1)", 10, 30),
        _event(ops, "exchange(1, 0)", 30, 45),
        _event(ops, "exchange(1, 1)", 31, 60),
        _event(ops, "compute(1, 0)", 46, 70),  # 1 ms of hand-off before it
        _event(ops, "compute(1, 1)", 70, 100),
        _event(ops, "reduce(1, 0)", 70, 90),
        _event(ops, "reduce(1, 1)", 100, 112),
        _event(ops, "allreduce(1)", 101, 105),
        _event(ops, "update(1)", 112, 115),
    ]
    (step,) = breakdown(events)
    assert step.step_ms == pytest.approx(105)
    assert step.exposed_ms == pytest.approx(
        {
            OpKind.RETRIEVE: 20,
            OpKind.EXCHANGE: 15,
            OpKind.COMPUTE: 54,
            OpKind.REDUCE: 12,
            OpKind.UPDATE: 3,
        }
    )
    assert step.other_ms == pytest.approx(1)
    # The second exchange was in the queue of the first for half its time.
    assert step.busy_ms[OpKind.EXCHANGE] == pytest.approx(15 + 15)


@pytest.mark.parametrize("schedule", [schedules.sync(), schedules.nestpipe(3)], ids=lambda s: s.name)
def test_a_real_run_is_explained(schedule: Schedule) -> None:
    tracer = Tracer()
    with build(Data(), schedule, RowWiseAdagrad(lr=0.1), tracer=tracer) as pipeline:
        batches = Data().batches(0, 1, 12)
        for _ in range(8):
            pipeline.progress(batches)
        pipeline.drain()
        events = tracer.take()
        assert tracer.take() == []
    for step in range(8):
        expected = {
            op.id for t in range(-schedule.look_ahead, 9) for op in schedule.ops(t) if op.step == step
        }
        assert {event.op.id for event in events if event.op.step == step} == expected
    steps = breakdown(events, began=min(event.issued for event in events))
    assert [step.step for step in steps] == list(range(8))
    for explained in steps:
        groups = sum(explained.exposed_group_ms(group) for group in ("lookup", "comm", "dense"))
        assert groups + explained.other_ms == pytest.approx(explained.step_ms)
        assert explained.other_ms >= -1e-6
    for event in events:
        assert event.issued <= event.started <= event.returned <= event.finished


def test_without_observers_no_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock() -> float:
        raise AssertionError("the clock was read")

    monkeypatch.setattr("nestpipe.executor.perf_counter", clock)
    with build(Data(), schedules.nestpipe(2), RowWiseAdagrad(lr=0.1)) as pipeline:
        pipeline.progress(Data().batches(0, 1, 9))
