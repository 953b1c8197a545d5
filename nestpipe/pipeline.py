"""The public class: a train pipeline with the contract of TorchRec's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe import schedules
from nestpipe.batching import Select, features_of, merge_outputs
from nestpipe.buffers import RowBuffer, Scratch
from nestpipe.checkpoint import Checkpoint, StateDict
from nestpipe.clustering import key_centric_order
from nestpipe.dense import FlatGradients, broadcast_dense
from nestpipe.embedding import install
from nestpipe.exchange import RowExchange
from nestpipe.executor import Executor
from nestpipe.freshness import FreshnessMeter
from nestpipe.layout import IdReader, build_layout, find_collections
from nestpipe.loading import load_initial_rows
from nestpipe.optim import SparseOptimizer
from nestpipe.replicas import build_replicas
from nestpipe.routing import Router
from nestpipe.schedule import OpId, OpKind, Schedule
from nestpipe.stages import Engine
from nestpipe.step_state import StepState
from nestpipe.stream import BatchStream
from nestpipe.table import HostTable, HostTier
from nestpipe.trace import Tracer
from nestpipe.transport import connect, default_group
from nestpipe.window import WindowChooser

logger = logging.getLogger("nestpipe")

DenseOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Order = Callable[[KeyedJaggedTensor, Sequence[int]], torch.Tensor]


class NestPipe:
    """Trains a model that holds TorchRec embedding collections, by a schedule.

    `model` (unsharded, identical on every worker) is changed in place: its collections are replaced by
    drop-ins, and their rows move to host tables sharded over the workers of `process_group` (default:
    the world; without torch.distributed a single worker). Initial weights are the model's own; tables
    on the meta device are initialised by their `init_fn`. `model(batch)` returns `(loss, output)`, the
    loss a mean over samples, or over what the batch's `loss_weight` counts.

    With `replicas` above 1 the workers form that many groups, each with all tables: the tables are
    sharded inside a group, and every `sync_every` steps the groups average the rows that changed, with
    optimizer state. What is read ahead of a step is as fresh as without, but within a group.

    A worker that waits for another longer than `timeout` ends with an error (default: the time limit of
    `process_group`).

    `sparse_optimizer` updates rows, `dense_optimizer` is called with the list of dense parameters.
    `features(batch)` gives the KeyedJaggedTensor to look up (default `batch.sparse_features`) and
    `select(batch, samples)` a batch of the given samples; the default handles dataclasses, tuples and
    dicts of tensors and jagged tensors. `clustering` orders samples into micro-batches: "key-centric",
    None, or a function of the features and the micro-batches' sizes. A `tracer` records every op, and
    `freshness` counts how stale the rows are that ops read.

    Construction, `progress`, `state_dict`, `load_state_dict` are collectives.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sparse_optimizer: SparseOptimizer,
        dense_optimizer: DenseOptimizer,
        schedule: Schedule | None = None,
        device: torch.device | str = "cpu",
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        features: Callable[[Any], KeyedJaggedTensor] = features_of,
        select: Select | None = None,
        clustering: Literal["key-centric"] | Order | None = "key-centric",
        replicas: int = 1,
        sync_every: int = 1,
        tracer: Tracer | None = None,
        freshness: FreshnessMeter | None = None,
        host_tier: HostTier | None = None,
    ) -> None:
        if isinstance(clustering, str) and clustering != "key-centric":
            raise ValueError(f'clustering must be "key-centric", None or a function, got {clustering!r}')
        self.model = model
        self.schedule = schedule or schedules.nestpipe()
        self.device = torch.device(device)
        transports = connect(process_group or default_group(), replicas, timeout)
        control, comm = transports.control, transports.comm
        self.rank, self.num_workers = control.rank, control.size

        collections = find_collections(model)
        layout = build_layout(collections, comm.size)
        tables = [HostTable(space, sparse_optimizer, host_tier) for space in layout.spaces]
        load_initial_rows(tables, layout, collections, comm.rank)
        self._replicas = build_replicas(tables, sparse_optimizer, transports.replicas, sync_every)
        context = install(model, collections, layout)
        del collections
        model.to(self.device)
        broadcast_dense(model, control.group)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.dense_optimizer = dense_optimizer(parameters)
        self._engine = Engine(
            model=model,
            context=context,
            reader=IdReader(layout, self.rank),
            router=Router(layout.spaces, transports.keys),
            transports=transports,
            replicas=self._replicas,
            exchanges=[
                RowExchange(comm, Scratch(space.dim, space.dtype, self.device)) for space in layout.spaces
            ],
            tables=tables,
            buffers=[
                [RowBuffer(space, sparse_optimizer, self.device) for space in layout.spaces]
                for _ in range(self.schedule.num_row_buffers)
            ],
            flat=FlatGradients(parameters),
            dense_optimizer=self.dense_optimizer,
            sparse_optimizer=sparse_optimizer,
            device=self.device,
            features=features,
            select=select,
            order=key_centric_order if clustering == "key-centric" else clustering,
        )
        self._checkpoint = Checkpoint(model, self.dense_optimizer, tables, layout, transports, self._replicas)
        self._chooser = WindowChooser(self.schedule, control) if self.schedule.auto else None
        self._window = self._chooser.schedule if self._chooser else self.schedule
        self._freshness = freshness
        handlers = freshness.watch(self._engine) if freshness else self._engine.handlers()
        self._executor = Executor(handlers, self.rank)
        if tracer is not None:
            self._executor.observers.append(tracer.record)
        if self._chooser is not None:
            self._executor.observers.append(self._chooser.record)
        self._step = 0
        self._stream: BatchStream | None = None
        self._first_step = 0
        self._running = False
        self._closed = False
        self.untrained: list[Any] = []
        """Batches of the last stream that were drawn but not trained, because another worker ran out."""

    @property
    def num_steps(self) -> int:
        """Steps trained so far, those of a loaded state included."""
        return self._engine.num_earlier_steps + self._step

    @property
    def window(self) -> Schedule:
        """The schedule in force; differs from `schedule` where the window is chosen."""
        return self._window

    @property
    def window_report(self) -> str:
        """Where the window is chosen, what was chosen and from which measured costs; else empty."""
        return self._chooser.report if self._chooser else ""

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step and return `(loss, output)` of this worker's batch.

        Batches are drawn up to `schedule.look_ahead` steps ahead, on another thread. Raises
        StopIteration on every worker at the first step for which any worker has no batch; what others
        had drawn is in `untrained` and comes first if the same iterator is passed again, while a new
        iterator starts a new epoch. A batch that cannot be used on one worker (an id out of range, say)
        ends every worker's training at its step, with the same message. On return the dense parameters
        are updated; rows may still be on their way to the host table (`drain` waits for them).
        """
        self._check_open()
        step = self._step
        if not self._running:
            self._start(batches)
        elif self._stream is not None and self._stream.source is not batches:
            self._stream.switch(batches)
        self._issue(step)
        state = self._engine.states[step]
        last_micro_batch = state.schedule.num_micro_batches - 1
        self._executor.run_until(OpId(OpKind.COMPUTE, step, last_micro_batch))
        # The last gradients are under way: what needs no update is done now, the next step waits for
        # this thread.
        result = self._result(state) if state.alive else None
        self._forget(step)
        self._executor.run_until(OpId(OpKind.UPDATE, step))
        if result is None:
            self._stop(step)
            raise state.error or StopIteration
        self._step += 1
        self._observe(step)
        return result

    def drain(self) -> None:
        """Wait for everything in flight; then the host tables hold every update."""
        self._executor.drain()

    def state_dict(self, full: bool = True) -> StateDict:
        """Tables, dense parameters and optimizer state (under `optimizer.*`), gathered on rank 0.

        Plain tensors under the unsharded model's own names; an empty dict on other ranks. With replicas
        the tables are those of rank 0's group, which between two averagings differ from the others'.
        """
        if not full:
            raise ValueError("only full=True is supported: the state gathered on rank 0")
        self._check_open()
        self.drain()
        return self._checkpoint.gather(self.num_steps)

    def load_state_dict(self, state: StateDict) -> None:
        """Take back what `state_dict` gave, from rank 0, on any number of workers.

        Without `optimizer.*` keys only the weights are replaced. Batches already drawn stay drawn.
        """
        self._check_open()
        self.drain()
        trained = self._checkpoint.scatter(state, self.num_steps)
        self._engine.num_earlier_steps = trained - self._step
        self._engine.reread(first_step=self._step)
        if self._freshness is not None:
            self._freshness.reread()

    def close(self) -> None:
        """End the lanes; the pipeline cannot be used afterwards."""
        if self._closed:
            return
        self._closed = True
        if self._executor.failure is None:
            self._executor.drain()
        busy = self._executor.close(timeout_s=1.0 if self._executor.failure else 10.0)
        if busy:
            logger.warning("rank %d: lanes still waiting for another worker: %s", self.rank, ", ".join(busy))

    def __enter__(self) -> NestPipe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this NestPipe is closed")

    def _start(self, batches: Iterator[Any]) -> None:
        handed_back: list[Any] = []
        if self._stream is not None and self._stream.source is batches:
            handed_back = self.untrained
        elif self.untrained:
            logger.warning(
                "rank %d: %d batches of the old iterator stay untrained", self.rank, len(self.untrained)
            )
        self.untrained = []
        self._stream = BatchStream(batches, handed_back)
        self._running = True
        self._first_step = self._step
        for step in range(self._step - self.schedule.look_ahead, self._step):
            self._issue(step)

    def _issue(self, step: int) -> None:
        assert self._stream is not None
        states = self._engine.states
        # A batch runs as it was cut, even if the window has been chosen anew since.
        schedule = states[step].schedule if step in states else self._window
        ops = schedule.ops(step, self._first_step)
        if self._replicas is not None and step >= self._first_step:
            ops = self._replicas.with_average(ops, step, self._engine.num_earlier_steps + step)
        for op in ops:
            if op.step not in states:
                states[op.step] = StepState(op.step, self._window, self._stream)
        self._executor.issue(ops)

    def _result(self, state: StepState) -> tuple[torch.Tensor, Any]:
        losses = state.losses
        loss = torch.stack(losses).sum() if len(losses) > 1 else losses[0] if losses else torch.zeros(())
        sizes = [part.num_samples for part in state.micro_batches]
        output = merge_outputs(state.outputs, sizes, state.order)
        state.outputs.clear()
        return loss, output

    def _stop(self, step: int) -> None:
        assert self._stream is not None
        self.drain()
        states = self._engine.states
        drawn = [states[s].batch for s in sorted(states) if s >= step and states[s].error is None]
        self.untrained = [batch for batch in drawn if batch is not None] + self._stream.unread()
        if self.untrained:
            logger.warning(
                "rank %d: stopped after %d steps because another worker has no batch to go on with; %d drawn "
                "here stay untrained (NestPipe.untrained)",
                self.rank,
                step,
                len(self.untrained),
            )
        states.clear()
        self._running = False

    def _forget(self, step: int) -> None:
        """Drop what no op in flight can name: a step's write-back may still run under the next one."""
        self._executor.forget(before_step=step - 1)
        for old in [s for s in self._engine.states if s < step - 1]:
            del self._engine.states[old]

    def _observe(self, step: int) -> None:
        if self._chooser is None or self._chooser.finished:
            return
        self._window = self._chooser.observe(step, self._engine.states[step].schedule)
        if self._chooser.finished:
            self._executor.observers.remove(self._chooser.record)
