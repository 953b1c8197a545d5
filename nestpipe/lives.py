"""What the reads of a row surely see, for a key that occurs in given batches.

Every read is given the updates that it sees in whatever order the ops may run: of the writes that it may
read from, what all of them contain (reaching definitions, over a partial order).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from nestpipe.happens_before import Order
from nestpipe.schedule import Buffer, Op, OpId, OpKind, Schedule

TABLE = Buffer("table")
DENSE = Buffer("dense")


@dataclass(frozen=True)
class Access:
    """An op's part in a key's life: it reads one place, may add an update, and writes others."""

    op: OpId
    position: int
    source: Buffer
    targets: tuple[Buffer, ...] = ()
    adds: OpId | None = None
    """The update that what it writes contains on top of what it reads."""


@dataclass(frozen=True)
class Miss:
    """A read that may not see an update."""

    read: Access
    update: OpId

    @property
    def staleness(self) -> int:
        """Steps from the update to the read."""
        return self.read.op.step - self.update.step


class Life:
    """The accesses of one row, or of the dense parameters, and what each surely sees."""

    def __init__(self, order: Order, accesses: Iterable[Access]) -> None:
        self.order = order
        self.accesses = sorted(accesses, key=lambda access: access.position)
        self._writers: dict[Buffer, list[Access]] = {}
        for access in self.accesses:
            for target in access.targets:
                self._writers.setdefault(target, []).append(access)

    def writers(self, place: Buffer) -> list[Access]:
        """Accesses that write `place`."""
        return self._writers.get(place, [])

    def may_read_from(self, read: Access) -> list[Access | None]:
        """The writes whose value `read` may find; None is what was there at the start."""
        precedes, at = self.order.precedes, read.position
        others = [w for w in self.writers(read.source) if w is not read and not precedes(at, w.position)]
        before = [w for w in others if precedes(w.position, at)]
        found: list[Access | None] = [
            w for w in others if not any(precedes(w.position, later.position) for later in before)
        ]
        return found if before else [None, *found]

    @cached_property
    def seen(self) -> dict[OpId, int]:
        """For each access the updates that what it reads surely contains, as bits by position."""
        origins = [(access, self.may_read_from(access)) for access in self.accesses]
        seen = {access.op: -1 for access in self.accesses}  # at first all; each round removes some
        changed = True
        while changed:
            changed = False
            for access, found in origins:
                value = -1
                for origin in found:
                    value &= 0 if origin is None else seen[origin.op] | self._added(origin)
                changed |= value != seen[access.op]
                seen[access.op] = value
        return seen

    def contains(self, access: Access, update: OpId) -> bool:
        """Whether what `access` leaves behind surely contains `update`."""
        value = self.seen[access.op] | self._added(access)
        return bool(value >> self.order.position[update] & 1)

    def misses(self) -> Iterator[Miss]:
        """Reads by the model that may not see an earlier step's update."""
        updates = [access.adds for access in self.accesses if access.adds is not None]
        for read in self.accesses:
            if read.targets:
                continue
            for update in updates:
                is_due = update.step < read.op.step
                if is_due and not self.seen[read.op] >> self.order.position[update] & 1:
                    yield Miss(read, update)

    def losses(self) -> Iterator[tuple[Access, OpId]]:
        """Writes to the table after an update reached it, by which it is gone from there."""
        writers = self.writers(TABLE)
        reached = [(w, access.adds) for access in self.accesses for w in writers if _lands(w, access)]
        for landed, update in reached:
            for later in writers:
                is_first = self.order.precedes(later.position, landed.position)
                if later is not landed and not is_first and update and not self.contains(later, update):
                    yield later, update

    def _added(self, access: Access) -> int:
        return 0 if access.adds is None else 1 << self.order.position[access.adds]


def _lands(write: Access, update: Access) -> bool:
    """Whether `write` is what brings the update to the table."""
    if update.adds is None:
        return False
    return write is update or (write.op.kind is OpKind.WRITE_BACK and write.op.step == update.adds.step)


@dataclass(frozen=True)
class Subject:
    """Whose freshness is in question: the row of a key, or the dense parameters."""

    batches: tuple[int, ...]
    """Steps whose batches contain the key."""
    has_peers: bool = False
    """Whether replicas of this group update the row at every step."""
    is_dense: bool = False

    def life(self, schedule: Schedule, order: Order) -> Life:
        """What happens to it under the schedule."""
        if self.is_dense:
            return _dense_life(order)
        ops = (order.ops[position] for position in order.position.values())
        return Life(order, (a for op in ops for a in _row_accesses(op, schedule, order, self)))


def _dense_life(order: Order) -> Life:
    found = []
    for op_id, position in order.position.items():
        if op_id.kind is OpKind.COMPUTE:
            found.append(Access(op_id, position, DENSE))
        elif op_id.kind is OpKind.UPDATE:
            found.append(Access(op_id, position, DENSE, (DENSE,), op_id))
    return Life(order, found)


def rows_of(step: int) -> Buffer:
    """The device buffer of a batch's rows."""
    return Buffer("rows", step)


def _row_accesses(op: Op, schedule: Schedule, order: Order, subject: Subject) -> Iterator[Access]:
    """What the engine does to the row in this op, if anything."""
    kind, step, position, batches = op.kind, op.step, order.position[op.id], subject.batches
    mine = rows_of(step)
    if kind is OpKind.AVERAGE:
        if step in batches or subject.has_peers:
            ahead = (rows_of(step + 1),) if step + 1 in batches and rows_of(step + 1) in op.writes else ()
            yield Access(op.id, position, TABLE, (TABLE, *ahead), op.id)
    elif step not in batches:
        return
    elif kind is OpKind.RETRIEVE:
        yield Access(op.id, position, TABLE, (mine,))
    elif kind is OpKind.SYNC:
        if step - 1 in batches:
            yield Access(op.id, position, rows_of(step - 1), (mine,))
    elif kind is OpKind.EXCHANGE:
        yield Access(op.id, position, mine)
    elif kind is OpKind.UPDATE and schedule.fresh:
        yield Access(op.id, position, mine, (mine,), op.id)
    elif kind is OpKind.WRITE_BACK and schedule.fresh:
        yield Access(op.id, position, mine, (TABLE,))
    elif kind is OpKind.WRITE_BACK:
        yield Access(op.id, position, TABLE, (TABLE,), OpId(OpKind.UPDATE, step))
