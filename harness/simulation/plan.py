"""A schedule made ready to be simulated: ops as numbers, dependencies as offsets, mistakes named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.options import nearest
from nestpipe.schedule import Lane, Op, OpKind, Schedule

Dependency = tuple[int, int]
"""Which op of the steady state, and how many steps before this one it was issued."""


@dataclass(frozen=True)
class Plan:
    """A schedule's steady state; ops are numbered in issue order."""

    name: str
    ops: tuple[Op, ...]
    lanes: tuple[tuple[int, ...], ...]
    """The ops of each lane in use, in issue order."""
    after: tuple[tuple[Dependency, ...], ...]
    """What each op waits for; never an op that is issued in a later step."""
    update: int
    look_ahead: int


def plan_of(schedule: Schedule) -> Plan:
    """Check a schedule and number its ops.

    Raises ValueError that names the ops: for an unknown lane, an op that occurs twice, a dependency on an
    op that does not exist or is issued in a later step, a cycle, a missing update.
    """
    ops = schedule.steady
    name = schedule.name
    updates = [index for index, op in enumerate(ops) if op.kind is OpKind.UPDATE and op.step == 0]
    if len(updates) != 1:
        raise ValueError(f"schedule {name!r}: a step ends with one update(0), but there are {len(updates)}")
    lanes = _lanes(name, ops)
    numbers = _numbers(name, ops)
    after = tuple(_dependencies(name, op, ops, numbers) for op in ops)
    _refuse_cycle(name, ops, lanes, after)
    return Plan(name, ops, lanes, after, updates[0], schedule.look_ahead)


def _lanes(name: str, ops: Sequence[Op]) -> tuple[tuple[int, ...], ...]:
    by_lane: dict[str, list[int]] = {}
    for index, op in enumerate(ops):
        if op.lane not in tuple(Lane):
            known = [lane.value for lane in Lane]
            raise ValueError(
                f"schedule {name!r}: {op.id} runs on unknown lane {str(op.lane)!r}: "
                f"{nearest(str(op.lane), known)}"
            )
        by_lane.setdefault(op.lane, []).append(index)
    return tuple(map(tuple, by_lane.values()))


def _numbers(name: str, ops: Sequence[Op]) -> dict[tuple[OpKind, int | None], int]:
    numbers: dict[tuple[OpKind, int | None], int] = {}
    for index, op in enumerate(ops):
        key = op.kind, op.id.micro_batch
        if key in numbers:
            raise ValueError(
                f"schedule {name!r}: {op.id} is issued twice a step, as {ops[numbers[key]].id} too"
            )
        numbers[key] = index
    return numbers


def _dependencies(
    name: str, op: Op, ops: Sequence[Op], numbers: dict[tuple[OpKind, int | None], int]
) -> tuple[Dependency, ...]:
    found = []
    for ref in op.after:
        index = numbers.get((ref.kind, ref.micro_batch))
        if index is None:
            raise ValueError(f"schedule {name!r}: {op.id} waits for {ref}, which no step issues")
        steps_before = ops[index].step - ref.step
        if steps_before < 0:
            raise ValueError(
                f"schedule {name!r}: {op.id} waits for {ref}, which is issued {-steps_before} steps later"
            )
        found.append((index, steps_before))
    return tuple(found)


def _refuse_cycle(
    name: str,
    ops: Sequence[Op],
    lanes: Sequence[Sequence[int]],
    after: Sequence[Sequence[Dependency]],
) -> None:
    """Within one step, no op may wait for itself: by dependencies and its lane's order together."""
    waits: list[list[int]] = [[other for other, steps in own if steps == 0] for own in after]
    for lane in lanes:
        for before, index in pairwise(lane):
            waits[index].append(before)
    is_done = [False] * len(ops)
    for index in range(len(ops)):
        cycle = _cycle_from(index, waits, is_done)
        if cycle:
            path = " waits for ".join(str(ops[member].id) for member in cycle)
            raise ValueError(f"schedule {name!r}: {path}: a cycle of dependencies and lane order")


def _cycle_from(start: int, waits: Sequence[Sequence[int]], is_done: list[bool]) -> list[int]:
    """The ops of a cycle that `start` leads into, the first one again at the end; empty without one."""
    path, on_path = [start], {start}
    choices = [iter(waits[start])]
    while path:
        for other in choices[-1]:
            if other in on_path:
                return [*path[path.index(other) :], other]
            if not is_done[other]:
                path.append(other)
                on_path.add(other)
                choices.append(iter(waits[other]))
                break
        else:
            is_done[path[-1]] = True
            on_path.discard(path.pop())
            choices.pop()
    return []
