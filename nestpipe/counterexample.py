"""Why a read may miss an update: the life of the key in three lines, and the edge that is missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nestpipe.happens_before import ScheduleError, order
from nestpipe.lives import DENSE, TABLE, Access, Life, Miss, Subject
from nestpipe.schedule import Buffer, Op, OpId, OpKind, Schedule


@dataclass(frozen=True)
class Counterexample:
    """A life in which a read misses an update."""

    batches: tuple[int, ...]
    """Steps whose batches contain the key; for the dense parameters all of them."""
    life: tuple[str, str, str]
    missing: str
    """The edge, `op -> op`, that would make the read see the update, or the op that would carry it."""


@dataclass(frozen=True)
class _Suspect:
    """Two accesses of one place in no order, though the second may spoil what the first must do."""

    first: Access
    second: Access
    place: Buffer
    is_overwritten: bool
    """The first puts the old row back after the second; else the second reads before the first writes."""


def explain(subject: Subject, miss: Miss, schedule: Schedule, num_steps: int) -> Counterexample:
    """The life of `subject` around `miss`, with the first edge found that alone would prevent it."""
    life = subject.life(schedule, order(schedule, num_steps))
    for suspect in _suspects(life, miss):
        mended = _with_edge(schedule, suspect.first.op, suspect.second.op)
        if _sees(subject, miss, mended, num_steps):
            lines = (_begin(subject, miss), _carry(life, suspect, miss), _fail(suspect, miss))
            return Counterexample(subject.batches, lines, f"{suspect.first.op} -> {suspect.second.op}")
    return _without_carrier(life, subject, miss, schedule)


def _suspects(life: Life, miss: Miss) -> Iterator[_Suspect]:
    """Unordered pairs on the way of the update to the read, nearest to the read first."""
    precedes = life.order.precedes
    waiting, known = deque([miss.read]), {miss.read.op}
    while waiting:
        read = waiting.popleft()
        origins = [origin for origin in life.may_read_from(read) if origin is not None]
        old = [origin for origin in origins if not life.contains(origin, miss.update)]
        for write in life.writers(read.source):
            if write is read or not life.contains(write, miss.update):
                continue
            at = write.position
            if not precedes(at, read.position) and not precedes(read.position, at):
                yield _Suspect(write, read, read.source, is_overwritten=False)
            for other in old:
                if not precedes(at, other.position) and not precedes(other.position, at):
                    yield _Suspect(other, write, read.source, is_overwritten=True)
        for origin in old:
            if origin.op not in known:
                known.add(origin.op)
                waiting.append(origin)


def _with_edge(schedule: Schedule, first: OpId, second: OpId) -> Schedule:
    """`schedule` with `second` waiting for `first`, and likewise at every step."""

    def mend(op: Op) -> Op:
        if (op.kind, op.id.micro_batch) != (second.kind, second.micro_batch):
            return op
        return replace(op, after=(*op.after, first._replace(step=first.step - second.step + op.step)))

    return replace(schedule, steady=tuple(mend(op) for op in schedule.steady))


def _sees(subject: Subject, miss: Miss, schedule: Schedule, num_steps: int) -> bool:
    try:
        ordered = order(schedule, num_steps)
    except ScheduleError:  # the edge would close a cycle
        return False
    wrong = {(m.read.op, m.update) for m in subject.life(schedule, ordered).misses()}
    return (miss.read.op, miss.update) not in wrong


def _without_carrier(life: Life, subject: Subject, miss: Miss, schedule: Schedule) -> Counterexample:
    """Where no edge helps: the read goes back to the table, and the update is not there in time."""
    read, update, step = miss.read, miss.update, miss.read.op.step
    landed = [w for w in life.writers(TABLE) if w.op.step == update.step and life.contains(w, update)]
    where = f"{landed[0].op} brings the change to the table" if landed else "the change reaches no later read"
    lines = (
        _begin(subject, miss),
        where,
        f"{OpId(OpKind.RETRIEVE, step)} read the row before, and so {read.op} sends it without the change",
    )
    carrier = OpId(OpKind.SYNC, step)
    if any(op.kind is OpKind.SYNC for op in schedule.steady):
        missing = f"an order of {update} before {read.op}; no single edge gives it"
    else:
        missing = f"{carrier}, between {update} and {read.op}"
    return Counterexample(subject.batches, lines, missing)


def _begin(subject: Subject, miss: Miss) -> str:
    if subject.is_dense:
        return f"{miss.update} changes the dense parameters"
    *most, last = [str(step) for step in subject.batches]
    which = f"batches {', '.join(most)} and {last}" if most else f"batch {last}"
    also = ", and which replicas change as well" if subject.has_peers else ""
    return f"{miss.update} changes the row of a key that is in {which}{also}"


def _carry(life: Life, suspect: _Suspect, miss: Miss) -> str:
    writer = suspect.second if suspect.is_overwritten else suspect.first
    if writer.op == miss.update:
        return f"the change is in {_named(suspect.place)} when {writer.op} has finished"
    return f"{writer.op} brings the change to {_named(suspect.place)}"


def _fail(suspect: _Suspect, miss: Miss) -> str:
    if suspect.is_overwritten:
        what = f"{suspect.first.op} may come later and put the old row there"
        return f"{what}, and so {miss.read.op} reads it without the change"
    what = f"{suspect.second.op} may read {_named(suspect.place)} before"
    return what if suspect.second is miss.read else f"{what}, and so {miss.read.op} has it without the change"


def _named(place: Buffer) -> str:
    if place in (TABLE, DENSE):
        return {TABLE: "the table", DENSE: "the dense parameters"}[place]
    return f"{place.name}({place.step})"
