"""A training step as data: ops on lanes, and directives that rewrite one schedule into another.

A schedule lists the ops that are issued at one step of the steady state, in issue order. Their steps
are relative: an op of step 1 belongs to the next batch. Executor, simulator and verifier all read
this; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple


class Lane(StrEnum):
    """A resource that runs one op at a time, in issue order."""

    HOST = "host"
    COPY = "copy"
    KEYS = "keys"
    MEMORY = "memory"
    COMM = "comm"
    COMPUTE = "compute"


class OpKind(StrEnum):
    """What an op does; the names appear in the trace, the breakdown and the plots."""

    PREFETCH = "prefetch"
    H2D = "h2d"
    ROUTE = "route"
    RETRIEVE = "retrieve"
    SYNC = "sync"
    EXCHANGE = "exchange"
    COMPUTE = "compute"
    REDUCE = "reduce"
    ALLREDUCE = "allreduce"
    UPDATE = "update"
    WRITE_BACK = "write_back"
    AVERAGE = "average"


LANE_OF: dict[OpKind, Lane] = {
    OpKind.PREFETCH: Lane.HOST,
    OpKind.H2D: Lane.COPY,
    OpKind.ROUTE: Lane.KEYS,
    OpKind.RETRIEVE: Lane.MEMORY,
    OpKind.SYNC: Lane.MEMORY,
    OpKind.EXCHANGE: Lane.COMM,
    OpKind.COMPUTE: Lane.COMPUTE,
    OpKind.REDUCE: Lane.COMM,
    OpKind.ALLREDUCE: Lane.COMM,
    OpKind.UPDATE: Lane.COMPUTE,
    OpKind.WRITE_BACK: Lane.MEMORY,
    OpKind.AVERAGE: Lane.MEMORY,
}

PER_MICRO_BATCH = frozenset({OpKind.EXCHANGE, OpKind.COMPUTE, OpKind.REDUCE})


class OpId(NamedTuple):
    """The identity of an op: its kind, its step and, for ops of a micro-batch, which one."""

    kind: OpKind
    step: int
    micro_batch: int | None = None

    def __str__(self) -> str:
        inside = str(self.step) if self.micro_batch is None else f"{self.step}, {self.micro_batch}"
        return f"{self.kind.value}({inside})"


class Buffer(NamedTuple):
    """Memory that ops read and write; `step` says whose contents, not which physical slot."""

    name: str
    step: int = 0
    micro_batch: int | None = None


@dataclass(frozen=True)
class Op:
    """One operation: where it runs, what must have finished before, what it touches."""

    id: OpId
    lane: Lane
    after: tuple[OpId, ...] = ()
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()

    @property
    def kind(self) -> OpKind:
        return self.id.kind

    @property
    def step(self) -> int:
        return self.id.step

    def shifted(self, by: int) -> Op:
        """The same op `by` steps later, its dependencies and buffers with it."""
        # Built field by field: this runs for every op of every step, on the caller's thread.
        return Op(
            OpId(self.id.kind, self.id.step + by, self.id.micro_batch),
            self.lane,
            tuple([OpId(kind, step + by, m) for kind, step, m in self.after]),
            tuple([Buffer(name, step + by, m) for name, step, m in self.reads]),
            tuple([Buffer(name, step + by, m) for name, step, m in self.writes]),
        )


@dataclass(frozen=True)
class Schedule:
    """The ops of one steady-state step, in issue order, with steps relative to it."""

    name: str
    steady: tuple[Op, ...]
    cuts: tuple[int, ...] = (1,)
    """Relative sizes of the window's micro-batches."""
    auto: bool = False
    """The window is chosen from costs measured while training starts."""
    fresh: bool = True
    """False: rows may be one step stale, and gradients are applied to the table's current rows."""
    num_row_buffers: int = 1
    late_sizes: bool = False
    """How many rows a batch looks up is read along with the next batch's counts."""

    @property
    def num_micro_batches(self) -> int:
        return len(self.cuts)

    @cached_property
    def look_ahead(self) -> int:
        """How many steps before its own a batch enters the pipeline."""
        return max(op.step for op in self.steady)

    @cached_property
    def _reach(self) -> int:
        """The earliest relative step that any dependency names."""
        return min((ref.step for op in self.steady for ref in op.after), default=0)

    def ops(self, step: int, first_step: int = 0) -> tuple[Op, ...]:
        """The ops issued at `step`, in issue order; `step` from `first_step - look_ahead` on.

        Ops of batches before `first_step` are left out, and so are dependencies on them.
        """
        issued = (op.shifted(step) for op in self.steady if op.step + step >= first_step)
        if step + self._reach >= first_step:
            return tuple(issued)
        return tuple(
            replace(op, after=tuple(ref for ref in op.after if ref.step >= first_step)) for op in issued
        )


def _op(
    kind: OpKind,
    micro_batch: int | None = None,
    after: Iterable[OpId] = (),
    reads: Iterable[Buffer] = (),
    writes: Iterable[Buffer] = (),
) -> Op:
    return Op(OpId(kind, 0, micro_batch), LANE_OF[kind], tuple(after), tuple(reads), tuple(writes))


def synchronous() -> Schedule:
    """The step as written in a textbook: every op after the one before it, nothing overlapped."""
    table, dense = Buffer("table"), Buffer("dense")
    source, host_batch, batch = Buffer("source"), Buffer("host_batch"), Buffer("batch")
    keys, rows, row_gradients = Buffer("keys"), Buffer("rows"), Buffer("row_gradients")
    sent, received = Buffer("sent", 0, 0), Buffer("received", 0, 0)
    gradients, returned = Buffer("gradients", 0, 0), Buffer("returned", 0, 0)
    dense_gradients, next_dense_gradients = Buffer("dense_gradients"), Buffer("dense_gradients", 1)
    prefetch, h2d, route = OpId(OpKind.PREFETCH, 0), OpId(OpKind.H2D, 0), OpId(OpKind.ROUTE, 0)
    retrieve, exchange = OpId(OpKind.RETRIEVE, 0), OpId(OpKind.EXCHANGE, 0, 0)
    compute, reduce = OpId(OpKind.COMPUTE, 0, 0), OpId(OpKind.REDUCE, 0, 0)
    allreduce, update = OpId(OpKind.ALLREDUCE, 0), OpId(OpKind.UPDATE, 0)
    updated_before, written_before = OpId(OpKind.UPDATE, -1), OpId(OpKind.WRITE_BACK, -1)
    steady = (
        _op(OpKind.PREFETCH, None, [written_before], [source], [host_batch, source]),
        _op(OpKind.H2D, None, [prefetch], [host_batch], [batch]),
        _op(OpKind.ROUTE, None, [h2d], [batch], [keys]),
        # Zeroes the room for gradients, and finds the keys that the batch before has as well.
        _op(
            OpKind.RETRIEVE,
            None,
            [route, written_before],
            [table, keys, Buffer("keys", -1)],
            [rows, row_gradients],
        ),
        _op(OpKind.EXCHANGE, 0, [retrieve], [rows, keys], [sent, received]),
        _op(
            OpKind.COMPUTE,
            0,
            [exchange, updated_before],
            [batch, keys, received, dense],
            [gradients, dense_gradients],
        ),
        _op(OpKind.REDUCE, 0, [compute], [gradients, keys], [returned, row_gradients]),
        _op(OpKind.ALLREDUCE, None, [compute], [dense_gradients], [dense_gradients]),
        # Leaves zeros for the next step's dense gradients.
        _op(
            OpKind.UPDATE,
            None,
            [compute, reduce, allreduce],
            [row_gradients, dense_gradients, rows, dense],
            [rows, dense, next_dense_gradients],
        ),
        _op(OpKind.WRITE_BACK, None, [update], [rows, keys], [table]),
    )
    return Schedule("sync", steady)


# How many steps ahead of its batch's own step a stage runs once batches overlap: the five stages
# of the paper work on five consecutive batches at a time.
_STAGE_LEAD = {OpKind.PREFETCH: 4, OpKind.H2D: 3, OpKind.ROUTE: 2, OpKind.RETRIEVE: 1, OpKind.SYNC: 1}


def overlap_batches(schedule: Schedule, fresh: bool = True) -> Schedule:
    """Dual-buffer pipelining (DBP): look up the coming batches while this one computes.

    With `fresh`, rows that two consecutive batches share are copied from the active to the prefetch
    buffer after the update, so every read sees every earlier update. Without, there is no such copy:
    each read is exactly one step stale, and write_back applies the gradients to the table's current
    rows and state, so no update is lost (the UniEmb-style step).
    """
    if schedule.look_ahead:
        raise ValueError(f"schedule {schedule.name!r} overlaps its batches already")
    ops: list[Op] = []
    for op in schedule.steady:
        if op.kind is OpKind.PREFETCH:
            op = replace(op, after=tuple(ref for ref in op.after if ref.kind is not OpKind.WRITE_BACK))
        elif op.kind is OpKind.RETRIEVE:
            # The buffer's last user was two batches ago; its write-back also makes the table fresh.
            op = replace(op, after=(OpId(OpKind.ROUTE, 0), OpId(OpKind.WRITE_BACK, -2)))
        elif op.kind is OpKind.EXCHANGE and fresh:
            op = replace(op, after=(OpId(OpKind.SYNC, 0), *op.after))
        elif op.kind is OpKind.UPDATE and not fresh:
            # The rows' gradients count in the norm by which those of the step are clipped.
            op = replace(op, reads=_without_rows(op.reads), writes=_without_rows(op.writes))
        elif op.kind is OpKind.WRITE_BACK and not fresh:
            table = Buffer("table")
            # Exactly one step stale, not sometimes: the next batch reads before this update lands.
            op = replace(
                op,
                after=(*op.after, OpId(OpKind.RETRIEVE, 1)),
                reads=(Buffer("row_gradients"), Buffer("keys"), table),
                writes=(table, Buffer("rows")),  # where the current rows are changed
            )
        if op.kind is OpKind.WRITE_BACK and fresh:
            ops.append(_sync())
        ops.append(op)
    steady = tuple(op.shifted(_STAGE_LEAD.get(op.kind, 0)) for op in ops)
    name = {True: "dbp", False: "uniemb"}[fresh] if schedule.name == "sync" else f"{schedule.name}+dbp"
    return replace(schedule, name=name, steady=steady, fresh=fresh, num_row_buffers=2)


def _without_rows(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple(buffer for buffer in buffers if buffer.name != "rows")


def _sync() -> Op:
    active = (Buffer("rows", -1), Buffer("keys", -1))
    mine = (Buffer("rows"), Buffer("keys"))
    return _op(
        OpKind.SYNC, None, [OpId(OpKind.UPDATE, -1), OpId(OpKind.RETRIEVE, 0)], (*active, *mine), [mine[0]]
    )


def split_window(schedule: Schedule, cuts: int | Sequence[int] | Literal["auto"]) -> Schedule:
    """Frozen-window pipelining (FWP): exchange and reduce of one micro-batch under another's compute.

    `cuts` is a number of equal micro-batches, a list of relative sizes, or "auto": start with one
    micro-batch and choose from what is measured. Parameters change once a window, after its last
    micro-batch, so every row is fresh inside it by definition.
    """
    if schedule.num_micro_batches != 1 or schedule.auto:
        raise ValueError(f"schedule {schedule.name!r} splits its window already")
    sizes = _check_cuts(cuts)
    by_kind = {op.kind: op for op in schedule.steady if op.kind in PER_MICRO_BATCH}
    copies = {kind: [_of_micro_batch(op, m) for m in range(len(sizes))] for kind, op in by_kind.items()}
    window = _interleave(copies[OpKind.EXCHANGE], copies[OpKind.COMPUTE], copies[OpKind.REDUCE])
    steady: list[Op] = []
    for op in schedule.steady:
        if op.kind is OpKind.EXCHANGE:
            steady.extend(window)
        elif op.kind not in PER_MICRO_BATCH:
            steady.append(_after_all(op, len(sizes)))
    name = {"sync": "fwp", "dbp": "nestpipe"}.get(schedule.name, f"{schedule.name}+fwp")
    return replace(schedule, name=name, steady=tuple(steady), cuts=sizes, auto=cuts == "auto")


def _check_cuts(cuts: int | Sequence[int] | str) -> tuple[int, ...]:
    if cuts == "auto":
        return (1,)
    if isinstance(cuts, int) and not isinstance(cuts, bool) and cuts >= 1:
        return (1,) * cuts
    if isinstance(cuts, Sequence) and not isinstance(cuts, str):
        sizes = tuple(cuts)
        if sizes and all(isinstance(size, int) and size > 0 for size in sizes):
            return sizes
    raise ValueError(f'cuts must be a positive int, a list of positive ints or "auto", got {cuts!r}')


def _of_micro_batch(op: Op, micro_batch: int) -> Op:
    def mine(ref: OpId) -> OpId:
        return ref._replace(micro_batch=micro_batch) if ref.micro_batch is not None else ref

    def own(buffer: Buffer) -> Buffer:
        return buffer._replace(micro_batch=micro_batch) if buffer.micro_batch is not None else buffer

    return replace(
        op,
        id=op.id._replace(micro_batch=micro_batch),
        after=tuple(map(mine, op.after)),
        reads=tuple(map(own, op.reads)),
        writes=tuple(map(own, op.writes)),
    )


def _interleave(exchanges: list[Op], computes: list[Op], reduces: list[Op]) -> list[Op]:
    """Issue order of a window: two exchanges lead, then the reduce of m - 1 and the exchange of m + 1
    alternate, so that neither waits behind a transfer that nobody needs yet."""
    ops = [exchanges[0]]
    for m, compute in enumerate(computes):
        if m + 1 < len(exchanges):
            ops.append(exchanges[m + 1])
        ops.append(compute)
        ops.append(reduces[m])
    return ops


def _after_all(op: Op, num_micro_batches: int) -> Op:
    """`op` with every reference to a micro-batch's op or buffer turned into one to all of them."""

    def refs() -> Iterable[OpId]:
        for ref in op.after:
            if ref.micro_batch is None:
                yield ref
            else:
                yield from (ref._replace(micro_batch=m) for m in range(num_micro_batches))

    def buffers(items: tuple[Buffer, ...]) -> Iterable[Buffer]:
        for buffer in items:
            if buffer.micro_batch is None:
                yield buffer
            else:
                yield from (buffer._replace(micro_batch=m) for m in range(num_micro_batches))

    return replace(op, after=tuple(refs()), reads=tuple(buffers(op.reads)), writes=tuple(buffers(op.writes)))
