"""Schedules that cannot run get an error that names the ops."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from harness.simulation.plan import plan_of
from nestpipe import schedules
from nestpipe.schedule import Op, OpId, OpKind, Schedule


def changed(schedule: Schedule, kind: OpKind, **changes: Any) -> Schedule:
    steady = tuple(replace(op, **changes) if op.kind is kind else op for op in schedule.steady)
    return replace(schedule, steady=steady)


def waiting(kind: OpKind, *refs: OpId) -> Schedule:
    """`sync` with one kind of op that waits for `refs` alone."""
    return changed(schedules.sync(), kind, after=refs)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (changed(schedules.sync(), OpKind.ROUTE, lane="key"), r"route\(0\) .*unknown lane 'key'.*'keys'"),
        (
            waiting(OpKind.COMPUTE, OpId(OpKind.UPDATE, 0)),
            r"compute\(0, 0\) waits for update\(0\) waits for compute\(0, 0\)|"
            r"update\(0\) waits for compute\(0, 0\) waits for update\(0\)",
        ),
        (waiting(OpKind.PREFETCH, OpId(OpKind.WRITE_BACK, 0)), "a cycle of dependencies and lane order"),
        (waiting(OpKind.ROUTE, OpId(OpKind.ROUTE, 0)), r"route\(0\) waits for route\(0\)"),
        (
            waiting(OpKind.ROUTE, OpId(OpKind.SYNC, 0)),
            r"route\(0\) waits for sync\(0\), which no step issues",
        ),
        (waiting(OpKind.EXCHANGE, OpId(OpKind.REDUCE, 0, 4)), r"waits for reduce\(0, 4\)"),
        (waiting(OpKind.ROUTE, OpId(OpKind.UPDATE, 2)), r"update\(2\), which is issued 2 steps later"),
        (replace(schedules.sync(), steady=schedules.sync().steady[:-2]), r"one update\(0\), but there are 0"),
        (
            replace(schedules.sync(), steady=(*schedules.sync().steady, schedules.sync().steady[0])),
            r"prefetch\(0\) is issued twice",
        ),
    ],
)
def test_mistakes_are_named(schedule: Schedule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of(schedule)


def test_lane_order_alone_can_close_a_cycle() -> None:
    """Two ops of one lane in the wrong order, tied by an op of another lane."""
    ops = {op.kind: op for op in schedules.sync().steady}
    swapped = [ops[kind] for kind in (OpKind.WRITE_BACK, OpKind.RETRIEVE)]
    rest = [op for op in schedules.sync().steady if op not in swapped]
    with pytest.raises(ValueError, match=r"retrieve\(0\) waits for write_back\(0\)"):
        plan_of(Schedule("swapped", (*swapped, *rest)))


def test_a_long_chain_is_no_cycle() -> None:
    ops = [Op(OpId(OpKind.COMPUTE, 0, m), schedules.sync().steady[5].lane) for m in range(3000)]
    chained = [ops[0], *(replace(op, after=(before.id,)) for before, op in pairwise(ops))]
    update = replace(
        next(op for op in schedules.sync().steady if op.kind is OpKind.UPDATE), after=(ops[-1].id,)
    )
    assert len(plan_of(Schedule("long", (*chained, update))).ops) == 3001


@pytest.mark.parametrize("micro_batches", [1, 2, 8, 63])
def test_named_schedules_are_sound(micro_batches: int) -> None:
    plan = plan_of(schedules.nestpipe(micro_batches))
    assert len(plan.ops) == 3 * micro_batches + 8
    assert plan.look_ahead == 4
