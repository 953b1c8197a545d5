"""The trace file of `nestpipe run --trace`: one line of JSON an op that a worker ran; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from nestpipe.schedule import Lane, Op, OpId, OpKind
from nestpipe.trace import OpEvent


@dataclass(frozen=True)
class TracedOp:
    """One op of a measured step; times are milliseconds of the worker's own clock."""

    method: str
    workers: int
    rank: int
    batch_size: int
    kind: str
    step: int
    micro_batch: int | None
    lane: str
    num_micro_batches: int
    issued_ms: float
    """Handed to its lane."""
    started_ms: float
    returned_ms: float
    """Returned by the lane; a transfer may still be under way."""
    finished_ms: float


_FIELDS = {field.name for field in fields(TracedOp)}


def traced(
    events: Iterable[OpEvent], *, method: str, workers: int, rank: int, batch_size: int
) -> Iterator[TracedOp]:
    """The events of one method on one worker, as they go into a file."""
    events = list(events)
    widths: dict[int, int] = {}
    for event in events:
        if event.op.kind is OpKind.COMPUTE:
            widths[event.op.step] = widths.get(event.op.step, 0) + 1
    for event in events:
        yield TracedOp(
            method=method,
            workers=workers,
            rank=rank,
            batch_size=batch_size,
            kind=event.op.kind.value,
            step=event.op.step,
            micro_batch=event.op.id.micro_batch,
            lane=event.op.lane.value,
            num_micro_batches=widths.get(event.op.step, 1),
            issued_ms=1e3 * event.issued,
            started_ms=1e3 * event.started,
            returned_ms=1e3 * event.returned,
            finished_ms=1e3 * event.finished,
        )


def write_trace(path: Path, ops: Iterable[TracedOp]) -> None:
    """Add a line an op to the file."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(op), allow_nan=False) + "\n" for op in ops)


def read_trace(path: Path) -> list[TracedOp]:
    """All ops of a trace file; ValueError with the line's number for a line that is not one."""
    ops = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                entry = json.loads(line)
                assert set(entry) == _FIELDS
                ops.append(TracedOp(**entry))
                event_of(ops[-1])
            except (ValueError, AssertionError, TypeError):
                raise ValueError(f"line {number} is no op of a trace; remove it to go on") from None
    if not ops:
        raise ValueError("the trace is empty: run a method that has a schedule, such as nestpipe")
    return ops


def event_of(op: TracedOp) -> OpEvent:
    """A line as the executor's event; what the op waited for is not in the file."""
    identity = OpId(OpKind(op.kind), op.step, op.micro_batch)
    times = (op.issued_ms, op.started_ms, op.returned_ms, op.finished_ms)
    return OpEvent(Op(identity, Lane(op.lane)), *(time / 1e3 for time in times))


def typical_step(ops: Iterable[TracedOp]) -> int | None:
    """A step in the middle of one worker's run that is there whole; None where there is none.

    A step begins with the update before it, and between rounds steps are missing.
    """
    updates = {op.step for op in ops if op.kind == OpKind.UPDATE.value}
    steps = sorted(step for step in updates if step - 1 in updates)
    return steps[len(steps) // 2] if steps else None


def own_ms(ops: Sequence[TracedOp]) -> list[tuple[TracedOp, float]]:
    """What each op took itself: a transfer's time in the queue behind the one before is not its own."""
    found = []
    free: dict[tuple[str, int, int, str], float] = {}
    for op in sorted(ops, key=lambda op: op.finished_ms):
        key = op.method, op.workers, op.rank, op.lane
        start = op.started_ms
        if op.lane == Lane.COMM:
            start = max(start, free.get(key, start))
            free[key] = op.finished_ms
        found.append((op, max(0.0, op.finished_ms - start)))
    return found
