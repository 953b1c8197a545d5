"""Memory that ops share: is everything written before it is read, and read before it is written anew?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from nestpipe.happens_before import Order, ScheduleError
from nestpipe.schedule import Buffer, Op, OpId, OpKind, Schedule

_SLOTS = frozenset({"rows", "row_gradients"})
_ONE_A_MICRO_BATCH = frozenset({"sent", "received", "returned"})
_LOOKUP = frozenset({OpKind.PREFETCH, OpKind.H2D, OpKind.ROUTE, OpKind.RETRIEVE, OpKind.SYNC})
# In place before the first step.
_STATE = frozenset({"table", "dense", "source"})
_ONE_IN_ALL = _STATE | {"dense_gradients"}
# An averaging changes rows that were read ahead, as the last one before they are sent.
_STAGES = sorted(OpKind, key=lambda kind: (kind not in _LOOKUP, kind is not OpKind.AVERAGE))

# Collectives match by order within a process group: of the keys, of rows and gradients, of the replicas.
_PROCESS_GROUPS = {
    "keys": (OpKind.ROUTE,),
    "comm": (OpKind.EXCHANGE, OpKind.REDUCE, OpKind.ALLREDUCE),
    "replicas": (OpKind.AVERAGE,),
}


@dataclass(frozen=True)
class Hazard:
    """Two ops that touch the same memory in no order, or in the wrong one."""

    first: OpId
    second: OpId
    problem: str

    @property
    def missing(self) -> str:
        """The edge that would exclude it."""
        return f"{self.first} -> {self.second}"

    def __str__(self) -> str:
        return f"{self.problem}; missing: {self.missing}"


@dataclass(frozen=True)
class _Use:
    """An op's use of a buffer."""

    position: int
    op: Op
    buffer: Buffer
    reads: bool
    writes: bool

    @property
    def turn(self) -> tuple[int, int, int, int]:
        """Uses of the same memory come in this order: the stages of one step, one step after another."""
        is_of_another_step = self.op.kind is OpKind.AVERAGE or self.buffer.name == "sizes"
        step = self.buffer.step if is_of_another_step else self.op.step
        return (self.buffer.step, step, _STAGES.index(self.op.kind), self.op.id.micro_batch or 0)


def find_hazards(schedule: Schedule, order: Order) -> list[Hazard]:
    """Pairs of ops that may meet in the same memory, each once, not once a step.

    Those are left out that the missing edge of another would exclude as well.
    Raises ScheduleError for a read of a buffer that no op writes.
    """
    uses = [use for position in order.position.values() for use in _uses(order.ops[position], position)]
    _check_all_written(order)
    by_memory: dict[Hashable, list[_Use]] = defaultdict(list)
    for use in uses:
        by_memory[_memory(use.buffer, schedule)].append(use)
    found: dict[Hashable, Hazard] = {}
    for sharing in by_memory.values():
        sharing.sort(key=lambda use: use.turn)
        for first, second in combinations(sharing, 2):
            hazard = _hazard(order, first, second)
            if hazard is not None:
                found.setdefault(_signature(first.op.id, second.op.id), hazard)
    return [hazard for hazard in found.values() if not _is_implied(hazard, found.values(), order)]


def find_disorder(order: Order) -> list[Hazard]:
    """Collectives of a process group that ranks may issue in different orders, a pair of kinds each."""
    found: dict[Hashable, Hazard] = {}
    for group, kinds in _PROCESS_GROUPS.items():
        members = [p for p in order.position.values() if order.ops[p].kind in kinds]
        for a, b in combinations(sorted(members), 2):  # positions ascend in an order of starting
            first, second = order.ops[a], order.ops[b]
            if not order.started[b] >> a & 1:
                problem = (
                    f"{first.id} on lane {first.lane} and {second.id} on lane {second.lane} may be issued in "
                    f"either order on process group {group}, differently on different ranks"
                )
                found.setdefault((first.kind, second.kind), Hazard(first.id, second.id, problem))
    return list(found.values())


def described(buffer: Buffer) -> str:
    """A buffer as messages call it."""
    inside = str(buffer.step) if buffer.micro_batch is None else f"{buffer.step}, {buffer.micro_batch}"
    return buffer.name if buffer.name in _STATE else f"{buffer.name}({inside})"


def _is_implied(hazard: Hazard, others: Iterable[Hazard], order: Order) -> bool:
    """Whether the edge that another hazard misses would also put this one's ops in order."""
    a, b = order.position[hazard.first], order.position[hazard.second]
    for other in others:
        c, d = order.position[other.first], order.position[other.second]
        starts = a == c or order.precedes(a, c)
        ends = b == d or order.precedes(d, b)
        if starts and ends and (a, b) != (c, d):
            return True
    return False


def _uses(op: Op, position: int) -> Iterator[_Use]:
    for buffer in dict.fromkeys((*op.reads, *op.writes)):
        if buffer.step >= 0:  # before the first step there is no batch
            yield _Use(position, op, buffer, buffer in op.reads, buffer in op.writes)


def _check_all_written(order: Order) -> None:
    writers: dict[Buffer, set[OpId]] = defaultdict(set)
    for op in order.ops:
        for buffer in op.writes:
            writers[buffer].add(op.id)
    for position in order.position.values():
        op = order.ops[position]
        for buffer in op.reads:
            if buffer.name not in _STATE and buffer.step >= 0 and not writers[buffer] - {op.id}:
                raise ScheduleError(f"{op.id} reads {described(buffer)}, which no op writes")


def _memory(buffer: Buffer, schedule: Schedule) -> Hashable:
    """Buffers of equal value share memory; most are a batch's own."""
    if buffer.name in _SLOTS:
        return buffer.name, buffer.step % schedule.num_row_buffers
    if buffer.name in _ONE_A_MICRO_BATCH:
        return buffer.name, buffer.micro_batch
    return buffer.name if buffer.name in _ONE_IN_ALL else buffer


def _hazard(order: Order, first: _Use, second: _Use) -> Hazard | None:
    """`first` has its turn before `second`."""
    a, b = first.position, second.position
    if a == b or not (first.writes or second.writes) or order.precedes(a, b):
        return None
    in_reverse = order.precedes(b, a)
    same_stage = (first.op.kind, first.op.step) == (second.op.kind, second.op.step)
    if same_stage and (in_reverse or first.op.kind is OpKind.REDUCE):
        # Micro-batches may come in any order; gradients of rows are added by one thread, one by one.
        return None
    if first.buffer.name == "table" and (in_reverse or not (first.writes and second.writes)):
        return None  # a question of freshness, which has a proof of its own
    return Hazard(first.op.id, second.op.id, _problem(first, second, in_reverse))


def _problem(first: _Use, second: _Use, in_reverse: bool) -> str:
    memory = described(first.buffer)
    if first.buffer.step != second.buffer.step and first.buffer.name not in _STATE:
        verb = "overwrites" if in_reverse else "may overwrite"
        done = "reads" if first.reads else "writes"
        return (
            f"overwritten while in use: {second.op.id} {verb} {memory}, which {first.op.id} {done}, with "
            f"{described(second.buffer)}"
        )
    if first.writes and second.writes:
        how = "writes first" if in_reverse else "write at once"
        who = str(second.op.id) if in_reverse else f"{first.op.id} and {second.op.id}"
        return f"two writers: {who} {how} in {memory}" + (f", then {first.op.id}" if in_reverse else "")
    if first.writes:
        when = "before" if in_reverse else "before or while"
        return f"read too early: {second.op.id} reads {memory} {when} {first.op.id} writes it"
    when = "before" if in_reverse else "before or while"
    return f"written too early: {second.op.id} writes {memory} {when} {first.op.id} reads it"


def _signature(first: OpId, second: OpId) -> Hashable:
    return first.kind, first.micro_batch, second.kind, second.micro_batch, second.step - first.step
