"""Which ops of a schedule have finished when another starts: lane order and dependencies, nothing else.

A lane starts its ops in issue order, and each when what it waits for has finished. An op finishes
before the next one on its lane starts, except transfers, which finish elsewhere.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nestpipe.schedule import PER_MICRO_BATCH, Lane, Op, OpId, OpKind, Schedule

TRANSFERS = frozenset({OpKind.EXCHANGE, OpKind.REDUCE, OpKind.ALLREDUCE})
OPTIONAL = frozenset({OpKind.SYNC, OpKind.AVERAGE})


class ScheduleError(ValueError):
    """A schedule that cannot run; the message names the ops."""


@dataclass(frozen=True)
class Order:
    """Ops in an order in which they can run, and for each a bit set of others by position."""

    ops: tuple[Op, ...]
    finished: tuple[int, ...]
    """Ops that have surely finished when this one starts."""
    started: tuple[int, ...]
    """Ops that have surely started before this one."""
    position: dict[OpId, int]

    def precedes(self, first: int, second: int) -> bool:
        """Whether op `first` has surely finished when op `second` starts."""
        return bool(self.finished[second] >> first & 1)


def order(schedule: Schedule, num_steps: int) -> Order:
    """The order of all ops of the steps 0 to `num_steps` - 1, issued from the start of training.

    Raises ScheduleError for an unknown lane or op, an op given twice or missing, a dependency that the
    executor would pass over, and a cycle.
    """
    check_form(schedule)
    delay = max(0, *(-op.step for op in schedule.steady))
    issued = [op for step in range(-schedule.look_ahead, num_steps + delay) for op in schedule.ops(step)]
    return _closure(issued, num_steps)


def check_runs(schedule: Schedule) -> None:
    """ScheduleError for a schedule whose ops would wait for each other for ever, or that `order` refuses."""
    # An op waits for what is issued before or along with it, so a circle lies within one step's issue.
    order(schedule, 1)


def check_form(schedule: Schedule) -> None:
    """ScheduleError unless every op is known, given once, and waits for ops issued no later."""
    lead: dict[tuple[OpKind, int | None], int] = {}
    for op in schedule.steady:
        _check_known(op.kind, OpKind, f"unknown op {op.kind!r}")
        _check_known(op.lane, Lane, f"{op.id} runs on the unknown lane {str(op.lane)!r}")
        name = (op.kind, op.id.micro_batch)
        if name in lead:
            raise ScheduleError(f"{op.id} is issued twice a step, with {OpId(op.kind, lead[name], name[1])}")
        lead[name] = op.step
    expected = {(kind, m) for kind in OpKind for m in _micro_batches(schedule, kind)}
    for kind, m in sorted(expected - lead.keys(), key=str):
        if kind not in OPTIONAL:
            raise ScheduleError(f"{OpId(kind, 0, m)} is missing: {schedule.name!r} never issues it")
    for kind, m in sorted(lead.keys() - expected, key=str):
        raise ScheduleError(
            f"{OpId(kind, lead[kind, m], m)} does not fit the schedule's {schedule.num_micro_batches} "
            "micro-batches (cuts)"
        )
    for op in schedule.steady:
        for ref in op.after:
            issued = lead.get((ref.kind, ref.micro_batch))
            if issued is None:
                raise ScheduleError(f"{op.id} waits for {ref}, which {schedule.name!r} never issues")
            if ref.step > issued:
                raise ScheduleError(
                    f"{op.id} waits for {ref}, which is issued {ref.step - issued} steps later: the "
                    "executor only waits for what is issued before or along with an op"
                )


def _check_known(value: Any, kinds: type[OpKind] | type[Lane], problem: str) -> None:
    known = [kind.value for kind in kinds]
    if value not in known:
        close = difflib.get_close_matches(str(value), known, n=1)
        raise ScheduleError(f"{problem}: " + (f"did you mean {close[0]!r}?" if close else ", ".join(known)))


def _micro_batches(schedule: Schedule, kind: OpKind) -> Iterable[int | None]:
    return range(schedule.num_micro_batches) if kind in PER_MICRO_BATCH else (None,)


def _closure(issued: Sequence[Op], num_steps: int) -> Order:
    position = {op.id: index for index, op in enumerate(issued)}
    before_on_lane: list[int | None] = []
    last: dict[Lane, int] = {}
    for index, op in enumerate(issued):
        before_on_lane.append(last.get(op.lane))
        last[op.lane] = index
    waits = [[position[ref] for ref in op.after if ref in position] for op in issued]
    sequence = _topological(issued, waits, before_on_lane)
    # Bits are positions in `sequence`, so that those of later ops are higher.
    place = {index: bit for bit, index in enumerate(sequence)}
    finished: list[int] = []
    started: list[int] = []
    for index in sequence:
        done = begun = 0
        for ref in waits[index]:
            done |= finished[place[ref]] | 1 << place[ref]
            begun |= started[place[ref]] | 1 << place[ref]
        previous = before_on_lane[index]
        if previous is not None:
            done |= finished[place[previous]]
            if issued[previous].kind not in TRANSFERS:
                done |= 1 << place[previous]
            begun |= started[place[previous]] | 1 << place[previous]
        finished.append(done)
        started.append(begun)
    ops = tuple(issued[index] for index in sequence)
    kept = {op.id: bit for bit, op in enumerate(ops) if op.step < num_steps}
    return Order(ops, tuple(finished), tuple(started), kept)


def _topological(
    issued: Sequence[Op], waits: Sequence[Sequence[int]], before_on_lane: Sequence[int | None]
) -> list[int]:
    def needs(index: int) -> Iterator[int]:
        yield from waits[index]
        previous = before_on_lane[index]
        if previous is not None:
            yield previous

    followers: list[list[int]] = [[] for _ in issued]
    open_needs = [0] * len(issued)
    for index in range(len(issued)):
        for need in needs(index):
            followers[need].append(index)
            open_needs[index] += 1
    ready = deque(index for index, count in enumerate(open_needs) if count == 0)
    sequence: list[int] = []
    while ready:
        index = ready.popleft()
        sequence.append(index)
        for follower in followers[index]:
            open_needs[follower] -= 1
            if open_needs[follower] == 0:
                ready.append(follower)
    if len(sequence) < len(issued):
        stuck = {index for index, count in enumerate(open_needs) if count > 0}
        raise ScheduleError(_cycle(issued, stuck, [list(needs(index)) for index in range(len(issued))]))
    return sequence


def _cycle(issued: Sequence[Op], stuck: set[int], needs: Sequence[Sequence[int]]) -> str:
    """A cycle among the ops that can never start, walked from one to what it needs."""
    path = [min(stuck)]
    while (need := next(n for n in needs[path[-1]] if n in stuck)) not in path:
        path.append(need)
    loop = [str(issued[index].id) for index in [*path[path.index(need) :], need]]
    return (
        f"cycle: {' waits for '.join(loop)}; an op waits for its dependencies and, on its lane, for those "
        "issued before it"
    )
