"""The averaging of replicas (2D) as part of a schedule: the op that ends a step, and who waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nestpipe.schedule import LANE_OF, Buffer, Op, OpId, OpKind, Schedule

_READS_ROWS = (OpKind.RETRIEVE, OpKind.EXCHANGE)


def average_replicas(schedule: Schedule) -> Schedule:
    """Two-dimensional sparse parallelism: rows of the replicas are averaged at the end of every step."""
    steady = with_average(schedule.steady, 0, follows_one=True, ends_with_one=True)
    return replace(schedule, name=f"{schedule.name}-2d", steady=steady)


def with_average(ops: Sequence[Op], step: int, *, follows_one: bool, ends_with_one: bool) -> tuple[Op, ...]:
    """`ops`, issued at `step`, with the averaging that ends it.

    Where they follow an averaging, what reads rows waits for it.
    """
    if follows_one:
        before = OpId(OpKind.AVERAGE, step - 1)
        ops = [replace(op, after=(*op.after, before)) if op.kind in _READS_ROWS else op for op in ops]
    if not ends_with_one:
        return tuple(ops)
    is_read_ahead = any(op.kind is OpKind.RETRIEVE and op.step > step for op in ops)
    return (*ops, _average(step, is_read_ahead))


def _average(step: int, is_read_ahead: bool) -> Op:
    """After the step's updates are in the table; the rows of a batch that was read ahead change too."""
    touched = (Buffer("table", step), *((Buffer("rows", step + 1),) if is_read_ahead else ()))
    written = OpId(OpKind.WRITE_BACK, step)
    return Op(OpId(OpKind.AVERAGE, step), LANE_OF[OpKind.AVERAGE], (written,), touched, touched)
