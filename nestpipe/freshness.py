"""The meter: how stale the rows are that a run really reads.

Every row carries the step of its last update on its way through host table and buffers. When rows are
sent to the model, the meter asks which earlier batches had the key as well, and so which updates are not
in them. `nestpipe.verify` proves a bound; this measures what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from nestpipe.executor import Handler
from nestpipe.lanes import Pending
from nestpipe.schedule import Op, OpKind

if TYPE_CHECKING:
    from nestpipe.stages import Engine
    from nestpipe.step_state import StepState

_NEVER = -1
# Steps that are looked back for updates which a row misses; more stale rows are counted as this stale.
MAX_STALENESS = 16

Note = Callable[[Op, "StepState"], None]


class FreshnessMeter:
    """Counts the rows read on this rank by how stale they were; for one pipeline.

    It follows the ops on their own lanes. A read is as stale as the first update that it misses is old,
    in steps. With replicas, updates of other groups are not counted.
    """

    def __init__(self) -> None:
        self._counts = torch.zeros(MAX_STALENESS + 1, dtype=torch.int64)
        self._engine: Engine | None = None
        self._table: list[torch.Tensor] = []
        """[row space] step of the last update that each row of the host table contains."""
        self._slots: list[list[torch.Tensor]] = []
        """[slot][row space] the same for the rows of the device buffers."""
        self._last_use: list[torch.Tensor] = []
        """[row space] last batch with the row, of those retrieved so far."""
        self._due: dict[int, list[torch.Tensor]] = {}
        """[step][row space] last batch before with the row, for each row of the batch."""
        self._keys: dict[int, list[torch.Tensor]] = {}

    @property
    def rows_by_staleness(self) -> list[int]:
        """Rows read that were 0, 1, 2, ... steps stale, up to the worst; a row counts once for each worker
        and micro-batch that it was sent to."""
        counts = self._counts.tolist()
        worst = max((steps for steps, count in enumerate(counts) if count), default=0)
        return counts[: worst + 1]

    def watch(self, engine: Engine) -> dict[OpKind, Handler]:
        """The engine's handlers, each with its part of the counting."""
        assert self._engine is None, "a meter belongs to one pipeline"
        self._engine = engine
        num_rows = [table.space.rows_per_rank for table in engine.tables]
        self._table = [torch.full((n,), _NEVER) for n in num_rows]
        self._last_use = [torch.full((n,), _NEVER) for n in num_rows]
        self._slots = [[torch.empty(0, dtype=torch.int64) for _ in num_rows] for _ in engine.buffers]
        handlers = engine.handlers()
        # A read is noted before it happens and a write after, so that a race never looks fresher than it was.
        for kind, note in ((OpKind.RETRIEVE, self._retrieve), (OpKind.EXCHANGE, self._read)):
            handlers[kind] = self._first(note, handlers[kind])
        for kind, note in (
            (OpKind.SYNC, self._sync),
            (OpKind.UPDATE, self._update),
            (OpKind.WRITE_BACK, self._write_back),
            (OpKind.AVERAGE, self._average),
        ):
            handlers[kind] = self._last(note, handlers[kind])
        return handlers

    def reread(self) -> None:
        """The buffers of batches not yet trained were filled again from the table."""
        assert self._engine is not None
        for state in self._engine.states.values():
            if state.alive and state.buffers:
                self._load(state)

    def _first(self, note: Note, handler: Handler) -> Handler:
        def run(op: Op) -> Pending | None:
            self._note(note, op)
            return handler(op)

        return run

    def _last(self, note: Note, handler: Handler) -> Handler:
        def run(op: Op) -> Pending | None:
            pending = handler(op)
            self._note(note, op)
            return pending

        return run

    def _note(self, note: Note, op: Op) -> None:
        assert self._engine is not None
        state = self._engine.states[op.step]
        if state.alive:
            note(op, state)

    def _slot(self, step: int) -> list[torch.Tensor]:
        return self._slots[step % len(self._slots)]

    def _retrieve(self, op: Op, state: StepState) -> None:
        keys = [route.owner_rows for route in state.routes]
        self._keys[op.step] = keys
        self._due[op.step] = [use.index_select(0, k) for use, k in zip(self._last_use, keys, strict=True)]
        for use, rows in zip(self._last_use, keys, strict=True):
            use.index_fill_(0, rows, op.step)
        slot = self._slot(op.step)
        for space, rows in enumerate(keys):
            slot[space] = self._table[space].index_select(0, rows)
        for kept in (self._keys, self._due):
            kept.pop(op.step - 2 * MAX_STALENESS, None)

    def _load(self, state: StepState) -> None:
        slot = self._slot(state.step)
        for space, buffer in enumerate(state.buffers):
            slot[space] = self._table[space].index_select(0, buffer.keys)

    def _sync(self, op: Op, state: StepState) -> None:
        active, mine = self._slot(op.step - 1), self._slot(op.step)
        for space, in_both in enumerate(state.shared):
            mine[space].index_copy_(0, in_both.prefetch, active[space].index_select(0, in_both.active))

    def _update(self, op: Op, state: StepState) -> None:
        if state.schedule.fresh:
            for stamps in self._slot(op.step):
                stamps.fill_(op.step)

    def _write_back(self, op: Op, state: StepState) -> None:
        slot = self._slot(op.step)
        for space, buffer in enumerate(state.buffers):
            if state.schedule.fresh:
                self._table[space].index_copy_(0, buffer.keys, slot[space])
            else:
                self._table[space].index_fill_(0, buffer.keys, op.step)

    def _average(self, op: Op, state: StepState) -> None:
        assert self._engine is not None
        ahead = self._engine.states.get(op.step + 1)
        if ahead is not None and ahead.alive and ahead.buffers:
            self._load(ahead)

    def _read(self, op: Op, state: StepState) -> None:
        assert op.id.micro_batch is not None
        for space, route in enumerate(state.routes):
            positions = route.micro_batches[op.id.micro_batch].positions
            stale = self._staleness(op.step, space, self._slot(op.step)[space])
            self._counts += torch.bincount(stale.index_select(0, positions), minlength=MAX_STALENESS + 1)

    def _staleness(self, step: int, space: int, stamps: torch.Tensor) -> torch.Tensor:
        """Steps since the first update that rows [n] with `stamps` miss, 0 where there is none."""
        stale = torch.zeros_like(stamps)
        behind = (stamps < self._due[step][space]).nonzero().view(-1)
        if not behind.numel():
            return stale
        rows, seen = self._keys[step][space].index_select(0, behind), stamps.index_select(0, behind)
        oldest = torch.full_like(rows, MAX_STALENESS)
        for before in range(step - 1, step - MAX_STALENESS, -1):
            if before not in self._keys:
                break
            missed = torch.isin(rows, self._keys[before][space], assume_unique=True) & (seen < before)
            # Later rounds are of earlier steps: the last to set it is the first that was missed.
            oldest[missed] = step - before
        return stale.index_copy_(0, behind, oldest)
