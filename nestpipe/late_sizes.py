"""The sizes of a batch's part at its owners, read with the next batch's counts: for accelerators.

Route needs two values from the device on the host: the counts, by which keys are sent, and how many different
rows have arrived, by which rows are looked up. Where batches overlap the second can wait for the first of
the batch after, so that the host reads once a step.
"""

from __future__ import annotations

from dataclasses import replace

from nestpipe.happens_before import ScheduleError, check_runs
from nestpipe.schedule import Buffer, Op, OpId, OpKind, Schedule


def read_sizes_late(schedule: Schedule) -> Schedule:
    """Look rows up once the next batch is routed, which is when their number is read.

    A schedule stays as it is if it looks rows up before that batch is there, or if that batch waits for what
    is done with them.
    """
    step_of = {op.kind: op.step for op in schedule.steady}
    if step_of[OpKind.ROUTE] <= step_of[OpKind.RETRIEVE]:
        return schedule
    late = replace(schedule, steady=tuple(map(_with_sizes, schedule.steady)), late_sizes=True)
    try:
        check_runs(late)
    except ScheduleError:
        return schedule
    return late


def _with_sizes(op: Op) -> Op:
    if op.kind is OpKind.ROUTE:
        return replace(op, writes=(*op.writes, Buffer("sizes", op.step - 1)))
    if op.kind is OpKind.RETRIEVE:
        after = (*op.after, OpId(OpKind.ROUTE, op.step + 1))
        return replace(op, after=after, reads=(*op.reads, Buffer("sizes", op.step)))
    if op.kind is OpKind.SYNC:
        return replace(op, reads=(*op.reads, Buffer("sizes", op.step)))
    return op
