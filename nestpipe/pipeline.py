"""The public class: a train pipeline with the contract of TorchRec's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe import schedules
from nestpipe.batching import Select, features_of
from nestpipe.buffers import RowBuffer, Scratch
from nestpipe.checkpoint import Checkpoint, StateDict
from nestpipe.clipping import GradientClipping
from nestpipe.clustering import key_centric_order
from nestpipe.dense import FlatGradients, broadcast_dense
from nestpipe.driver import Driver
from nestpipe.embedding import install
from nestpipe.evaluation import Evaluated, Evaluator
from nestpipe.exchange import RowExchange
from nestpipe.executor import Executor
from nestpipe.freshness import FreshnessMeter
from nestpipe.happens_before import check_runs
from nestpipe.late_sizes import read_sizes_late
from nestpipe.layout import IdReader, Layout, build_layout, find_collections
from nestpipe.loading import load_initial_rows
from nestpipe.lr import LrFactor
from nestpipe.optim import SparseOptimizer
from nestpipe.replicas import build_replicas
from nestpipe.routing import Router
from nestpipe.schedule import Schedule
from nestpipe.stages import Engine
from nestpipe.streams import indexed, streams_of
from nestpipe.table import HostTable, HostTier
from nestpipe.trace import Tracer
from nestpipe.transport import Kind, connect, default_group
from nestpipe.updates import Updates
from nestpipe.warm_up import warm_up
from nestpipe.window import WindowChooser

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

    On an accelerator, `device`, the tables stay in pinned host memory and rows travel as batches need them;
    every lane has a stream, and what `progress` returns may still be computed when it does. The groups of
    the lanes are made for host and device (gloo and NCCL); `zero_sm` asks NCCL to spare the
    multiprocessors (`nestpipe.transport.zero_sm_options`).

    A worker that waits for another longer than `timeout` ends with an error (default: the time limit of
    `process_group`).

    `sparse_optimizer` updates rows, `dense_optimizer` is called with the list of dense parameters.
    `sparse_lr_factor` and `dense_lr_factor` (`nestpipe.lr`) give the factor on their learning rates by
    step, counted from 0 over the run; the dense one is in force during the update only, so a torch
    scheduler on the attribute `dense_optimizer`, stepped after `progress`, works instead or as well.
    `clipping` limits the norm of a step's gradients.

    `features(batch)` gives the KeyedJaggedTensor to look up (default `batch.sparse_features`) and
    `select(batch, samples)` a batch of the given samples; the default handles dataclasses, tuples and
    dicts of tensors and jagged tensors. `clustering` orders samples into micro-batches: "key-centric",
    None, or a function of the features and the micro-batches' sizes. A `tracer` records every op, and
    `freshness` counts how stale the rows are that ops read. `check_bounds` looks at every index before
    kernels follow it, and waits for the device to do so.

    Construction, `progress`, `evaluate`, `state_dict` and `load_state_dict` are collectives. Construction
    raises ScheduleError for a schedule whose ops would wait for each other for ever.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sparse_optimizer: SparseOptimizer,
        dense_optimizer: DenseOptimizer,
        schedule: Schedule | None = None,
        sparse_lr_factor: LrFactor | None = None,
        dense_lr_factor: LrFactor | None = None,
        clipping: GradientClipping | None = None,
        device: torch.device | str = "cpu",
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        zero_sm: bool = False,
        features: Callable[[Any], KeyedJaggedTensor] = features_of,
        select: Select | None = None,
        clustering: Literal["key-centric"] | Order | None = "key-centric",
        replicas: int = 1,
        sync_every: int = 1,
        tracer: Tracer | None = None,
        freshness: FreshnessMeter | None = None,
        check_bounds: bool = False,
        host_tier: HostTier | None = None,
    ) -> None:
        if isinstance(clustering, str) and clustering != "key-centric":
            raise ValueError(f'clustering must be "key-centric", None or a function, got {clustering!r}')
        self.model = model
        self.schedule = schedule or schedules.nestpipe()
        self.device = indexed(torch.device(device))
        streams = streams_of(self.device)
        check_runs(self.schedule)
        if streams.is_asynchronous:
            self.schedule = read_sizes_late(self.schedule)
        if freshness is not None and streams.is_asynchronous:
            raise ValueError(f'freshness is counted on the host: it needs device="cpu", not {self.device}')
        transports = connect(process_group or default_group(), replicas, Kind(self.device, timeout, zero_sm))
        control, comm = transports.control, transports.comm
        self.rank, self.num_workers = control.rank, control.size

        collections = find_collections(model)
        layout = build_layout(collections, comm.size)
        tables = [
            HostTable(space, sparse_optimizer, host_tier, is_pinned=streams.is_asynchronous)
            for space in layout.spaces
        ]
        load_initial_rows(tables, layout, collections, comm.rank)
        replicated = build_replicas(tables, sparse_optimizer, transports.replicas, sync_every, self.device)
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
            router=Router(layout.spaces, transports.keys, self.device, streams.is_asynchronous),
            transports=transports,
            replicas=replicated,
            exchanges=[
                RowExchange(comm, Scratch(space.dim, space.dtype, self.device)) for space in layout.spaces
            ],
            tables=tables,
            buffers=[
                [RowBuffer(space, sparse_optimizer, self.device) for space in layout.spaces]
                for _ in range(self.schedule.num_row_buffers)
            ],
            updates=Updates(
                sparse_optimizer,
                self.dense_optimizer,
                FlatGradients(parameters),
                transports,
                sparse_lr_factor,
                dense_lr_factor,
                clipping,
            ),
            device=self.device,
            streams=streams,
            check_bounds=check_bounds,
            features=features,
            select=select,
            order=_key_centric(layout) if clustering == "key-centric" else clustering,
        )
        if streams.is_asynchronous:
            warm_up(self._engine)
        self._checkpoint = Checkpoint(model, self.dense_optimizer, tables, layout, transports, replicated)
        self._evaluator = Evaluator(self._engine, layout, self._settle)
        self._chooser = WindowChooser(self.schedule, control) if self.schedule.auto else None
        self._freshness = freshness
        handlers = freshness.watch(self._engine) if freshness else self._engine.handlers()
        self._executor = Executor(handlers, self.rank, streams)
        if tracer is not None:
            self._executor.observers.append(tracer.record)
        self._driver = Driver(self._engine, self._executor, self.schedule, self._chooser)
        self._closed = False

    @property
    def num_steps(self) -> int:
        """Steps trained so far, those of a loaded state included."""
        return self._engine.num_earlier_steps + self._driver.step

    @property
    def untrained(self) -> list[Any]:
        """Batches of the last stream that were drawn but not trained, because another worker ran out."""
        return self._driver.untrained

    @property
    def window(self) -> Schedule:
        """The schedule in force; differs from `schedule` where the window is chosen."""
        return self._driver.window

    @property
    def window_report(self) -> str:
        """Where the window is chosen, what was chosen and from which measured costs; else empty."""
        return self._chooser.report if self._chooser else ""

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step and return `(loss, output)` of this worker's batch.

        Batches are drawn up to `schedule.look_ahead` steps ahead, on another thread; on an accelerator the
        step needs the batch after it, too, or its end, to be there (`nestpipe.late_sizes`). Raises
        StopIteration on every worker at the first step for which any worker has no batch; what others
        had drawn is in `untrained` and comes first if the same iterator is passed again, while a new
        iterator starts a new epoch. A batch that cannot be used on one worker (an id out of range, say)
        ends every worker's training at its step, with the same message. On return the dense parameters
        are updated; rows may still be on their way to the host table (`drain` waits for them).
        """
        self._check_open()
        if not torch.is_grad_enabled():
            raise RuntimeError(
                "progress trains, so it needs gradients: call it outside no_grad, or use evaluate"
            )
        # Formats that autocast remembers would outlive the update of the weights they were made from.
        torch.clear_autocast_cache()
        return self._driver.progress(batches)

    def drain(self) -> None:
        """Wait for everything in flight; then the host tables hold every update."""
        self._executor.drain()

    def evaluate(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        """Run the model forward, one batch at a time, and yield `(batch, loss, output)` of this worker's.

        In evaluation mode and without gradients, on the rows as they are after every step trained so far
        (with replicas those of the worker's own group). Training goes on afterwards as if nothing had
        been: what was drawn ahead for it stays drawn. A collective, batch by batch: a worker with fewer
        batches than another, or one that ends the generator early, goes on answering the others' lookups
        until no worker has a batch left. A batch that cannot be used, or an error in the model, ends every
        worker's evaluation with its message.
        """
        self._check_open()
        return self._evaluator.run(batches)

    def rows_of(self, table: str, chunk_rows: int = 65536) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Ids [n] (int64) and rows [n, dim] of a table, by its configuration's name, that this worker holds.

        Chunks of copies, as they are after every step trained so far; each row is at exactly one worker.
        With replicas at one of rank 0's group: between two averagings the others' rows differ. Raises
        ValueError for a name that no table has, or several have (then take the parameter's).
        """
        self._check_open()
        return self._evaluator.rows_of(table, chunk_rows)

    def state_dict(self, full: bool = True) -> StateDict:
        """Tables, dense parameters and optimizer state (under `optimizer.*`), gathered on rank 0.

        Plain tensors under the unsharded model's own names; an empty dict on other ranks. With replicas
        the tables are those of rank 0's group, which between two averagings differ from the others'.
        """
        if not full:
            raise ValueError("only full=True is supported: the state gathered on rank 0")
        self._settle()
        return self._checkpoint.gather(self.num_steps)

    def load_state_dict(self, state: StateDict) -> None:
        """Take back what `state_dict` gave, from rank 0, on any number of workers.

        Without `optimizer.*` keys only the weights are replaced. Batches already drawn stay drawn.
        """
        self._settle()
        evaluated = self._engine.streams.mark()
        if evaluated is not None:
            evaluated.wait()  # its reads of the tables may still be queued on the caller's stream
        trained = self._checkpoint.scatter(state, self.num_steps)
        self._engine.num_earlier_steps = trained - self._driver.step
        self._engine.reread(first_step=self._driver.step)
        if self._freshness is not None:
            self._freshness.reread()

    def close(self) -> None:
        """End the lanes; the pipeline cannot be used afterwards."""
        if self._closed:
            return
        self._closed = True
        self._evaluator.close()
        self._executor.close()

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

    def _settle(self) -> None:
        self._check_open()
        self.drain()


def _key_centric(layout: Layout) -> Order:
    """Key-centric clustering that knows which features read the same table, so that equal ids are one key."""
    slots = (slot for slots in layout.slots for slot in slots)
    tables = {slot.feature: f"{slot.table.module}.{slot.table.name}" for slot in slots}
    return partial(key_centric_order, tables=tables)
