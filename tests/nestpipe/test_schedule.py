"""Schedules as data: what the directives produce."""

from __future__ import annotations

import itertools

import pytest

from nestpipe import schedules
from nestpipe.late_sizes import read_sizes_late
from nestpipe.schedule import Lane, OpId, OpKind, Schedule, overlap_batches, split_window, synchronous

ALL = [
    schedules.sync(),
    schedules.dbp(),
    schedules.fwp(3),
    schedules.nestpipe(1),
    schedules.nestpipe(8),
    schedules.nestpipe_chosen(),
    schedules.uniemb(),
]


def _ids(schedule: Schedule, step: int, lane: Lane) -> list[str]:
    return [str(op.id) for op in schedule.ops(step) if op.lane is lane]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.name)
def test_every_op_is_issued_once_and_after_what_it_waits_for(schedule: Schedule) -> None:
    seen: list[OpId] = []
    for step in range(-schedule.look_ahead, 6):
        for op in schedule.ops(step):
            assert op.step >= 0
            # A stale write-back names the next batch's retrieve, which is issued along with it.
            issued_together = {o.id for o in schedule.ops(step)}
            assert all(ref in seen or ref in issued_together for ref in op.after), str(op.id)
            assert op.id not in seen
            seen.append(op.id)
    for step in range(6):
        kinds = [op_id.kind for op_id in seen if op_id.step == step]
        assert kinds.count(OpKind.COMPUTE) == schedule.num_micro_batches
        assert kinds.count(OpKind.UPDATE) == 1


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.name)
def test_a_later_start_issues_the_same_ops_shifted(schedule: Schedule) -> None:
    for step in range(-schedule.look_ahead, 4):
        early = [(op.id._replace(step=op.step + 10), len(op.after)) for op in schedule.ops(step)]
        late = [(op.id, len(op.after)) for op in schedule.ops(step + 10, first_step=10)]
        assert early == late


def test_synchronous_is_one_chain() -> None:
    ops = synchronous().ops(3)
    for before, op in itertools.pairwise(ops):
        if op.kind is not OpKind.ALLREDUCE:
            assert before.id in op.after or before.kind is OpKind.ALLREDUCE


def test_directives_commute() -> None:
    one = split_window(overlap_batches(synchronous()), 4)
    other = overlap_batches(split_window(synchronous(), 4))
    assert sorted(one.steady, key=str) == sorted(other.steady, key=str)


def test_comm_lane_order_of_a_window() -> None:
    assert _ids(schedules.nestpipe(4), 7, Lane.COMM) == [
        "exchange(7, 0)",
        "exchange(7, 1)",
        "reduce(7, 0)",
        "exchange(7, 2)",
        "reduce(7, 1)",
        "exchange(7, 3)",
        "reduce(7, 2)",
        "reduce(7, 3)",
        "allreduce(7)",
    ]


def test_memory_lane_of_overlapped_batches() -> None:
    assert _ids(schedules.dbp(), 5, Lane.MEMORY) == ["retrieve(6)", "sync(6)", "write_back(5)"]
    assert _ids(schedules.uniemb(), 5, Lane.MEMORY) == ["retrieve(6)", "write_back(5)"]


def test_freshness_edges() -> None:
    after = {op.id: op.after for op in schedules.nestpipe(2).ops(5)}
    assert OpId(OpKind.WRITE_BACK, 4) in after[OpId(OpKind.RETRIEVE, 6)]
    assert OpId(OpKind.UPDATE, 5) in after[OpId(OpKind.SYNC, 6)]
    assert OpId(OpKind.SYNC, 5) in after[OpId(OpKind.EXCHANGE, 5, 1)]
    stale = {op.id: op.after for op in schedules.uniemb().ops(5)}
    assert OpId(OpKind.RETRIEVE, 6) in stale[OpId(OpKind.WRITE_BACK, 5)]


@pytest.mark.parametrize("cuts", [0, -1, 2.5, True, [], [1, 0], [1.0], "all", None], ids=repr)
def test_bad_cuts(cuts: object) -> None:
    with pytest.raises(ValueError, match="cuts must be a positive int"):
        split_window(synchronous(), cuts)  # type: ignore[arg-type]


def test_late_sizes_hold_up_the_lookup_alone() -> None:
    for schedule in (schedules.dbp(), schedules.nestpipe(3), schedules.uniemb()):
        late = read_sizes_late(schedule)
        added = {
            str(op.id): set(op.after) - set(before.after)
            for op, before in zip(late.steady, schedule.steady, strict=True)
            if op.after != before.after
        }
        assert added == {"retrieve(1)": {OpId(OpKind.ROUTE, 2)}}
        assert late.late_sizes
        assert late.look_ahead == schedule.look_ahead


def test_sizes_are_read_at_once_where_no_batch_is_routed_ahead() -> None:
    for schedule in (schedules.sync(), schedules.fwp(3)):
        assert read_sizes_late(schedule) is schedule
        assert not schedule.late_sizes


def test_directives_apply_once() -> None:
    with pytest.raises(ValueError, match="overlaps its batches already"):
        overlap_batches(schedules.dbp())
    with pytest.raises(ValueError, match="splits its window already"):
        split_window(schedules.fwp(2), 4)
