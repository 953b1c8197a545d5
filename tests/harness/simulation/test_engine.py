"""The event loop: against the schedule unrolled op by op, and on cases worked out by hand."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from harness.simulation.engine import OpTime, Timeline, simulate
from harness.simulation.plan import plan_of
from nestpipe import schedules
from nestpipe.schedule import Lane, Op, OpId, OpKind, Schedule

SCHEDULES = {
    "sync": schedules.sync(),
    "dbp": schedules.dbp(),
    "uniemb": schedules.uniemb(),
    "fwp-1": schedules.fwp(1),
    "fwp-3": schedules.fwp(3),
    "nestpipe-8": schedules.nestpipe(8),
    "nestpipe-tapered": schedules.nestpipe([1, 2, 2, 1]),
    "nestpipe-2d": schedules.nestpipe_2d(),
}


def run(
    schedule: Schedule, times: dict[OpKind, OpTime], num_steps: int, handover_ms: float = 0.0
) -> Timeline:
    own = [times.get(op.kind, OpTime()) for op in schedule.steady]
    return simulate(plan_of(schedule), own, num_steps, handover_ms)


def unrolled(
    schedule: Schedule, times: dict[tuple[OpKind, int | None], OpTime], num_steps: int, handover_ms: float
) -> dict[OpId, tuple[float, float]]:
    """Start and finish of every op by the recursion alone; right where only the comm lane transfers, as
    its lane order then is the link's order too."""
    spans: dict[OpId, tuple[float, float]] = {}
    lane_free: dict[Lane, float] = {}
    link_free = done = issued = 0.0
    for step in range(-schedule.look_ahead, num_steps):
        if step > 0:
            issued = spans[OpId(OpKind.UPDATE, step - 1)][1] + handover_ms
        left = list(schedule.ops(step))
        while left:
            # Issue order may put an op before one of another lane that it waits for.
            op = next(op for op in left if all(ref in spans for ref in op.after) and _is_next(op, left))
            left.remove(op)
            own = times[op.kind, op.id.micro_batch]
            start = max([issued, lane_free.get(op.lane, 0.0), *(spans[ref][1] for ref in op.after)])
            end = start + own.lane_ms
            lane_free[op.lane] = end
            if op.lane is Lane.COMM and own.is_transfer:
                link_free = max(link_free, end) + own.link_ms
                done = max(done, link_free + own.latency_ms) + own.finish_ms
                end = done
            spans[op.id] = start, end
    return spans


def _is_next(op: Op, left: list[Op]) -> bool:
    return next(other for other in left if other.lane is op.lane) is op


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_op_runs_when_the_recursion_says(name: str, seed: int) -> None:
    schedule, draw = SCHEDULES[name], random.Random(f"{name}{seed}")
    times = {}
    for op in schedule.steady:
        is_comm = op.lane is Lane.COMM
        times[op.kind, op.id.micro_batch] = OpTime(
            lane_ms=draw.choice([0.0, draw.uniform(0, 9)]),
            link_ms=draw.uniform(0.1, 9) if is_comm else 0.0,
            latency_ms=draw.choice([0.0, draw.uniform(0, 3)]) if is_comm else 0.0,
            finish_ms=draw.choice([0.0, draw.uniform(0, 1)]) if is_comm else 0.0,
        )
    handover_ms = draw.choice([0.0, 2.5])
    expected = unrolled(schedule, times, 7, handover_ms)
    own = [times[op.kind, op.id.micro_batch] for op in schedule.steady]
    events = simulate(plan_of(schedule), own, 7, handover_ms).events(-schedule.look_ahead)
    found = {event.op.id: (1e3 * event.started, 1e3 * event.finished) for event in events}
    assert found.keys() == expected.keys()
    for op_id, span in expected.items():
        assert found[op_id] == pytest.approx(span, abs=1e-9), op_id


def test_in_turn_a_step_is_the_sum() -> None:
    times = {kind: OpTime(lane_ms=ms) for ms, kind in enumerate(OpKind, start=1)}
    kinds = [op.kind for op in schedules.sync().steady]
    in_turn = sum(times[kind].lane_ms for kind in kinds)
    steps = run(schedules.sync(), times, 6).step_ms()
    # The allreduce may run under the reduce: they are issued on one lane, one after the other.
    assert steps[1:] == pytest.approx([in_turn] * 5)


def test_overlapped_batches_take_the_longest_lane() -> None:
    times = {OpKind.PREFETCH: OpTime(50.0), OpKind.COMPUTE: OpTime(20.0), OpKind.RETRIEVE: OpTime(30.0)}
    assert run(schedules.dbp(), times, 12).step_ms()[-1] == pytest.approx(50.0)
    assert run(schedules.dbp(), times | {OpKind.COMPUTE: OpTime(70.0)}, 12).step_ms()[-1] == pytest.approx(
        70.0
    )


def test_a_window_exposes_its_first_and_last_transfer() -> None:
    times = {
        OpKind.EXCHANGE: OpTime(link_ms=3.0),
        OpKind.COMPUTE: OpTime(10.0),
        OpKind.REDUCE: OpTime(link_ms=3.0),
    }
    assert run(schedules.nestpipe(8), times, 12).step_ms()[-1] == pytest.approx(86.0)


def test_latency_occupies_nothing() -> None:
    times = {OpKind.EXCHANGE: OpTime(link_ms=1.0, latency_ms=5.0), OpKind.COMPUTE: OpTime(1.0)}
    # Exchanges leave at 0, 1, 2 ms and arrive from 6 ms on, a millisecond apart.
    assert run(schedules.nestpipe(2), times, 1).step_ms() == pytest.approx([8.0])


def test_two_lanes_share_one_link_first_come_first_served() -> None:
    """A long transfer of another lane, begun first, holds up a short one, and its own lane too."""
    route = Op(OpId(OpKind.ROUTE, 0), Lane.KEYS)
    second = Op(OpId(OpKind.RETRIEVE, 0), Lane.KEYS)
    exchange = Op(OpId(OpKind.EXCHANGE, 0, 0), Lane.COMM)
    update = Op(OpId(OpKind.UPDATE, 0), Lane.COMPUTE, (OpId(OpKind.EXCHANGE, 0, 0), OpId(OpKind.RETRIEVE, 0)))
    plan = plan_of(Schedule("shared", (route, second, exchange, update)))
    times = [
        OpTime(lane_ms=1.0, link_ms=9.0, latency_ms=2.0),
        OpTime(1.0),
        OpTime(2.0, link_ms=1.0),
        OpTime(),
    ]
    timeline = simulate(plan, times, 1)
    finished = {event.op.kind: 1e3 * event.finished for event in timeline.events()}
    assert finished[OpKind.ROUTE] == pytest.approx(12.0)
    assert finished[OpKind.EXCHANGE] == pytest.approx(11.0)
    assert finished[OpKind.RETRIEVE] == pytest.approx(13.0)
    later = [replace(times[0], lane_ms=3.0), *times[1:]]
    finished = {event.op.kind: 1e3 * event.finished for event in simulate(plan, later, 1).events()}
    assert finished[OpKind.EXCHANGE] == pytest.approx(3.0)
    assert finished[OpKind.ROUTE] == pytest.approx(14.0)


def test_the_handover_is_paid_once_a_step() -> None:
    times = {OpKind.COMPUTE: OpTime(10.0)}
    assert run(schedules.nestpipe(2), times, 5, handover_ms=3.0).step_ms() == pytest.approx(
        [20, 23, 23, 23, 23]
    )


@pytest.mark.timed
def test_ten_thousand_steps_take_seconds() -> None:
    times = {kind: OpTime(lane_ms=1.0) for kind in OpKind} | {OpKind.EXCHANGE: OpTime(link_ms=0.3)}
    began = time.perf_counter()
    steps = run(schedules.nestpipe(8), times, 10_000).step_ms()
    assert time.perf_counter() - began < 5
    assert len(steps) == 10_000
    assert steps[-1] == pytest.approx(steps[100])
