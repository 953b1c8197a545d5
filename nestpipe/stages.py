"""The work of each op: what the lanes run, on the state of the step the op belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe.batching import MicroBatch, Select, move_batch, split_batch, sync_keys
from nestpipe.bounds import check_routed
from nestpipe.buffers import RowBuffer
from nestpipe.embedding import Lookup, LookupContext, version_of
from nestpipe.exchange import RowExchange
from nestpipe.executor import Handler
from nestpipe.lanes import Pending
from nestpipe.layout import IdReader
from nestpipe.replicas import Replicas
from nestpipe.routing import Flag, Router
from nestpipe.schedule import Op, OpKind
from nestpipe.step_state import StepState
from nestpipe.streams import CpuStreams, Streams
from nestpipe.table import HostTable
from nestpipe.transport import Transports, agreed_error, wait
from nestpipe.unique import shared_positions
from nestpipe.updates import Updates


@dataclass
class Transfers:
    """Several transfers that finish together."""

    parts: Sequence[Pending]

    def wait(self) -> None:
        for part in self.parts:
            part.wait()


@dataclass
class Engine:
    """What the stages work on; one a pipeline, shared by its lanes.

    `states` is filled by the pipeline as it issues ops; each stage finds its batch there.
    """

    model: nn.Module
    context: LookupContext
    reader: IdReader
    router: Router
    transports: Transports
    replicas: Replicas | None
    exchanges: list[RowExchange]
    tables: list[HostTable]
    buffers: list[list[RowBuffer]]
    """[slot][row space]: a batch of step t uses slot t mod the number of slots."""
    updates: Updates
    device: torch.device
    features: Callable[[Any], KeyedJaggedTensor]
    select: Select | None
    order: Callable[[KeyedJaggedTensor, Sequence[int]], torch.Tensor] | None
    streams: Streams = field(default_factory=CpuStreams)
    states: dict[int, StepState] = field(default_factory=dict)
    check_bounds: bool = False
    num_earlier_steps: int = 0
    """Steps that a loaded state had been trained before this pipeline's step 0."""

    def handlers(self) -> dict[OpKind, Handler]:
        """The function of each kind of op."""
        return {
            OpKind.PREFETCH: self.prefetch,
            OpKind.H2D: self.h2d,
            OpKind.ROUTE: self.route,
            OpKind.RETRIEVE: self.retrieve,
            OpKind.SYNC: self.sync,
            OpKind.EXCHANGE: self.exchange,
            OpKind.COMPUTE: self.compute,
            OpKind.REDUCE: self.reduce,
            OpKind.ALLREDUCE: self.allreduce,
            OpKind.UPDATE: self.update,
            OpKind.WRITE_BACK: self.write_back,
            OpKind.AVERAGE: self.average,
        }

    def prefetch(self, op: Op) -> None:
        """Stage 1: the next batch, its samples clustered into micro-batches."""
        state = self.states[op.step]
        try:
            state.batch = state.stream.take()
            if state.batch is not None:
                self.reader.check(self.features(state.batch))
                state.micro_batches, state.order = split_batch(
                    state.batch, self.features, state.schedule.cuts, self.order, self.select
                )
                if self.streams.is_asynchronous:
                    self._make_ready_to_copy(state)
        except Exception as error:  # told to the other ranks in route, so that none waits for this one
            state.error = error

    def _make_ready_to_copy(self, state: StepState) -> None:
        """In pinned memory, and with what the host will ask of the keys, which it cannot read later."""
        for part in state.micro_batches:
            sync_keys((part.features, part.batch))
            part.batch = self.streams.pinned(part.batch)
        if state.order is not None:
            state.order = self.streams.pinned(state.order)

    def h2d(self, op: Op) -> None:
        """Stage 2: the micro-batches to the device."""
        state = self.states[op.step]
        try:
            for part in state.micro_batches:
                part.batch = move_batch(part.batch, self.device)
                part.features = self.features(part.batch)
            if state.order is not None:
                state.order = move_batch(state.order, self.device)
        except Exception as error:
            state.error = error

    def route(self, op: Op) -> None:
        """Stage 3: which rows, whose, and whether every rank has a batch."""
        state = self.states[op.step]
        previous = self.states.get(op.step - 1)
        if previous is not None and not previous.alive:
            state.stream.stop()
            return  # agreed already, on every rank alike
        keys: list[list[torch.Tensor]] = [[] for _ in self.tables]
        for part in state.micro_batches if state.error is None else ():
            for space, ids in enumerate(self.reader.keys(part.features)):
                keys[space].append(ids)
            state.counts.append(self.reader.counts(part.features))
        flag = Flag.ERROR if state.error else Flag.END if state.batch is None else Flag.BATCH
        if self.replicas is not None:
            flag = self._worst_flag(flag)
        # How many rows are shared with a device's batch before is read here, and not by the memory lane.
        before = previous.routed if self.streams.is_asynchronous and previous is not None else None
        is_late = state.schedule.late_sizes and not self.check_bounds
        state.routed = self.router.route(keys, state.schedule.num_micro_batches, flag, before, is_late)
        state.alive = all(f is Flag.BATCH for f in state.routed.flags)
        if state.alive:
            if self.check_bounds:
                check_routed([table.space for table in self.tables], state.routed, before)
            return
        state.stream.stop()
        if Flag.ERROR in state.routed.flags:
            state.error = agreed_error(self.transports.agreement, state.error)

    def _worst_flag(self, flag: Flag) -> Flag:
        """Of all workers: with replicas the key counts reach only those that share the tables."""
        worst = torch.tensor(int(flag))
        wait(self.transports.agreement.all_reduce(worst, dist.ReduceOp.MAX))
        return Flag(int(worst))

    def retrieve(self, op: Op) -> None:
        """Stage 4: this rank's rows of the batch from the host table into the free buffer."""
        state = self.states[op.step]
        if not state.alive:
            return
        state.buffers = self.buffers[op.step % len(self.buffers)]
        for table, buffer, route in zip(self.tables, state.buffers, state.routes, strict=True):
            buffer.resize(route.owner_rows)
            table.read(route.owner_rows, buffer.rows, buffer.state if state.schedule.fresh else {})
        previous = self.states.get(op.step - 1)
        if not self.streams.is_asynchronous and previous is not None and previous.alive:
            state.routed.shared = [
                shared_positions(before.owner_rows, route.owner_rows)
                for before, route in zip(previous.routes, state.routes, strict=True)
            ]

    def sync(self, op: Op) -> None:
        """Dual-buffer synchronisation: rows that the batch before has just updated."""
        state = self.states[op.step]
        if not state.alive:
            return
        previous = self.states.get(op.step - 1)
        if previous is None:
            return
        for mine, active, in_both in zip(state.buffers, previous.buffers, state.shared, strict=True):
            mine.copy_shared_rows(active, in_both)

    def exchange(self, op: Op) -> Pending | None:
        """Rows of a micro-batch to the workers that asked for them."""
        state, m = self.states[op.step], _micro_batch(op)
        if not state.alive:
            return None
        transfers = [
            exchange.send_rows(buffer.rows, route, m)
            for exchange, buffer, route in zip(self.exchanges, state.buffers, state.routes_of(m), strict=True)
        ]
        state.received[m] = transfers
        return Transfers(transfers)

    def compute(self, op: Op) -> None:
        """Dense forward and backward of a micro-batch; leaves the gradients of its rows."""
        state, m = self.states[op.step], _micro_batch(op)
        if not state.alive:
            return
        part = state.micro_batches[m]
        self.streams.keep_until_read(part.batch)  # an output of the model may be a part of it
        rows = [transfer.received.detach().requires_grad_() for transfer in state.received.pop(m)]
        if part.num_samples:
            self._forward_backward(state, m, part, rows)
        else:
            state.outputs.append(None)
        state.row_gradients[m] = [
            torch.zeros_like(r) if r.grad is None else r.grad.contiguous() for r in rows
        ]

    def _forward_backward(self, state: StepState, m: int, part: MicroBatch, rows: list[torch.Tensor]) -> None:
        self.context.current = Lookup(
            part.features,
            version_of(part.features),
            rows,
            [route.inverse for route in state.routes_of(m)],
            state.counts[m],
        )
        loss, output = self.model(part.batch)
        loss = loss if part.weight == 1.0 else loss * part.weight
        # As torch recommends: backward follows the number formats of forward.
        with torch.autocast(self.device.type, enabled=False):
            loss.backward()
        self.context.current = None
        state.losses.append(loss.detach())
        state.outputs.append(output)

    def reduce(self, op: Op) -> Pending | None:
        """Row gradients of a micro-batch to the owners of the rows."""
        state, m = self.states[op.step], _micro_batch(op)
        if not state.alive:
            return None
        gradients = state.row_gradients.pop(m)
        return Transfers(
            [
                exchange.send_gradients(buffer, route, m, gradient)
                for exchange, buffer, route, gradient in zip(
                    self.exchanges, state.buffers, state.routes_of(m), gradients, strict=True
                )
            ]
        )

    def allreduce(self, op: Op) -> Pending | None:
        """Dense gradients, averaged over the workers."""
        return self.updates.flat.reduce(self.transports.dense) if self.states[op.step].alive else None

    def update(self, op: Op) -> None:
        """Both optimizers, once a window."""
        state = self.states[op.step]
        if not state.alive:
            return
        state.gradient_factor = self.updates.clip(state.buffers, self.device)
        if state.schedule.fresh:
            for buffer in state.buffers:
                self._update_rows(state, buffer)
        self.updates.update_dense(self.num_earlier_steps + op.step)

    def write_back(self, op: Op) -> None:
        """Updated rows and state to the host table.

        Where the schedule lets rows be stale, the gradients are applied to the table's current rows
        instead, so that no update of another step is overwritten.
        """
        state = self.states[op.step]
        if not state.alive:
            return
        for table, buffer in zip(self.tables, state.buffers, strict=True):
            if state.schedule.fresh:
                table.write(buffer.keys, buffer.rows, buffer.state)
            else:
                change = partial(self._update_rows, state, buffer)
                table.update(buffer.keys, buffer.rows, buffer.state, change)
        if self.replicas is not None:
            self.replicas.mark(state.buffers)

    def average(self, op: Op) -> None:
        """Rows and state that any replica has updated, in the tables and in the buffers read ahead."""
        state = self.states[op.step]
        if not state.alive:
            return
        assert self.replicas is not None
        ahead = self.states.get(op.step + 1)
        self.replicas.average(ahead.buffers if ahead is not None and ahead.alive else [])

    def reread(self, first_step: int) -> None:
        """Fill the buffers of batches not yet trained again, after the tables were replaced."""
        for step, state in self.states.items():
            if step >= first_step and state.alive and state.buffers:
                for table, buffer in zip(self.tables, state.buffers, strict=True):
                    table.read(buffer.keys, buffer.rows, buffer.state if state.schedule.fresh else {})

    def _update_rows(self, state: StepState, buffer: RowBuffer) -> None:
        self.updates.update_rows(buffer, self.num_earlier_steps + state.step, state.gradient_factor)


def _micro_batch(op: Op) -> int:
    assert op.id.micro_batch is not None
    return op.id.micro_batch
