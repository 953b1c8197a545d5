"""Methods that run on NestPipe's own engine: each is one schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from baselines.interface import Evaluated, Exactness, Method, Runner, Setup, StepTimes
from nestpipe import NestPipe, Tracer, schedules
from nestpipe.replicas import describe
from nestpipe.schedule import Schedule
from nestpipe.trace import breakdown
from nestpipe.window import WindowChooser

Options = Mapping[str, Any]

BITWISE = Exactness("bitwise", "sync", 0.0)
REORDERED = Exactness("reordered", "sync", 2e-6)


class EngineRunner(Runner):
    """Steps a NestPipe pipeline and reads its trace."""

    def __init__(self, setup: Setup, schedule: Schedule, replicas: int = 1, sync_every: int = 1) -> None:
        self.grouping = ""
        """How the workers are grouped, where the method does that."""
        self._tracer = Tracer()
        self._kept_events = setup.events
        self._pipeline = NestPipe(
            setup.model,
            sparse_optimizer=setup.sparse_optimizer,
            dense_optimizer=setup.dense_optimizer,
            schedule=schedule,
            device=setup.device,
            replicas=replicas,
            sync_every=sync_every,
            clustering=None if setup.options.get("clustering") == "none" else "key-centric",
            host_tier=setup.host_tier,
            tracer=self._tracer,
            freshness=setup.freshness,
            check_bounds=setup.check_bounds,
            sparse_lr_factor=setup.sparse_lr_factor,
            dense_lr_factor=setup.dense_lr_factor,
            clipping=setup.clipping,
        )
        self._began: float | None = None
        self._timed: list[StepTimes] = []

    @property
    def schedule(self) -> Schedule:  # type: ignore[override]
        """The schedule in force, its window as chosen."""
        return self._pipeline.window

    @property
    def note(self) -> str:  # type: ignore[override]
        """How the workers are grouped; for a schedule that chooses its window, what it chose and why."""
        return "; ".join(filter(None, (self.grouping, self._pipeline.window_report)))

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step."""
        is_first = self._began is None
        if is_first:
            self._began = perf_counter()
        try:
            return self._pipeline.progress(batches)
        except StopIteration:
            if is_first:
                self._began = None
            raise

    def evaluate(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        """See `NestPipe.evaluate`; what it takes counts in no step's time."""
        self.drain()
        self._time_steps()
        yield from self._pipeline.evaluate(batches)

    def rows_of(self, table: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """See `NestPipe.rows_of`."""
        return self._pipeline.rows_of(table)

    def step_times(self) -> list[StepTimes]:
        """Exposed times off the critical path of each step since the last call."""
        self._time_steps()
        timed, self._timed = self._timed, []
        return timed

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A collective: tables and dense parameters on rank 0, without optimizer state."""
        state = self._pipeline.state_dict(full=True)
        return {name: tensor for name, tensor in state.items() if not name.startswith("optimizer.")}

    def drain(self) -> None:
        """Wait for write-backs and look-ahead in flight."""
        self._pipeline.drain()

    def close(self) -> None:
        """End the lanes."""
        self._pipeline.close()

    def _time_steps(self) -> None:
        """Read the trace up to now; the next step counts from its own begin."""
        events = self._tracer.take()
        if self._kept_events is not None:
            self._kept_events += events
        steps = breakdown(events, self._began)
        self._began = None
        self._timed += [
            StepTimes(
                step.step_ms,
                step.exposed_group_ms("lookup"),
                step.exposed_group_ms("comm"),
                step.exposed_group_ms("dense"),
            )
            for step in steps
        ]


class EngineMethod(Method):
    """A schedule of the engine under a name."""

    supports_float64 = True
    supports_uneven_ends = True

    def __init__(
        self,
        name: str,
        make_schedule: Callable[[Options], Schedule],
        exactness: Exactness,
        extra_warmup_steps: int = 0,
    ) -> None:
        self.name = name
        self.exactness = exactness
        self.extra_warmup_steps = extra_warmup_steps
        self._make_schedule = make_schedule

    def build(self, setup: Setup) -> EngineRunner:
        """A collective: the model's tables move into the engine."""
        return EngineRunner(setup, self._make_schedule(setup.options))


class ReplicatedNestPipe(Method):
    """NestPipe in `replicas` groups of workers (default 2) that each hold all tables, averaged every
    `sync_every` steps (default 1)."""

    name = "nestpipe-2d"
    exactness = None
    """Replicas update a row from their own gradients and are averaged: other arithmetic by design."""
    supports_float64 = True
    supports_uneven_ends = True

    def build(self, setup: Setup) -> EngineRunner:
        """A collective; one worker makes one group whatever `replicas` says.

        Raises ValueError where `replicas` does not divide the number of workers.
        """
        num_workers = dist.get_world_size() if dist.is_initialized() else 1
        replicas = setup.options.get("replicas", 2) if num_workers > 1 else 1
        sync_every = setup.options.get("sync_every", 1)
        schedule = schedules.nestpipe(_micro_batches(setup.options))
        runner = EngineRunner(setup, schedule, replicas, sync_every)
        runner.grouping = describe(num_workers, replicas, sync_every)
        return runner


def _micro_batches(options: Options) -> schedules.Cuts:
    return options.get("micro_batches", 8)


SYNC = EngineMethod("sync", lambda _: schedules.sync(), Exactness("library", "torchrec", 1e-5))
DBP = EngineMethod("dbp", lambda _: schedules.dbp(), BITWISE)
FWP = EngineMethod("fwp", lambda options: schedules.fwp(_micro_batches(options)), REORDERED)
NESTPIPE = EngineMethod("nestpipe", lambda options: schedules.nestpipe(_micro_batches(options)), REORDERED)
NESTPIPE_CHOSEN = EngineMethod(
    "nestpipe-chosen",
    lambda _: schedules.nestpipe_chosen(),
    REORDERED,
    extra_warmup_steps=WindowChooser.num_steps(schedules.nestpipe_chosen().look_ahead),
)
NESTPIPE_2D = ReplicatedNestPipe()
UNIEMB = EngineMethod("uniemb", lambda _: schedules.uniemb(), Exactness("stale by 1", "sync", None))
