"""What a command will take before it starts: an estimate from sizes and a few timed steps of the plain model.

Nothing here is a measurement. A launch is taken to start about as slowly as this process did, and a step to
last as long as the unsharded model's forward and backward here, times workers over cores where those are
fewer; on an emulated cluster as long as the simulator says. Memory is what a process holds without a model,
the model that each worker builds before it is sharded, and every method's share of rows and optimizer state;
activations are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil
import torchrec  # noqa: F401 - what every worker loads, so that this process is as large and as old as one

from harness.batches import MAX_HELD_BYTES, NUM_SPARE_BATCHES
from harness.durations import duration
from harness.emulation.profiles import Profile
from harness.job import Job, plan_rounds
from harness.machine import num_cores
from harness.options import Settings
from harness.probe import Costs, measure_costs
from harness.training.job import TrainingJob

RENDEZVOUS_S = 2.0
WORKER_START = 1.25
"""A worker's start over this process's: it loads the process groups and builds the optimizers as well."""
EVALUATION_SHARE = 0.5
"""Of an epoch's training: a forward pass and the ranking."""
_COPIES = {"sgd": 0.0, "adagrad": 1.0, "adam": 2.0}
"""Tables' worth of optimizer state."""


@dataclass(frozen=True)
class Estimate:
    """What a command is expected to take."""

    seconds: float | None
    """None where no step could be timed."""
    memory_bytes: float
    """Of all processes together, at their peak."""

    def __str__(self) -> str:
        took = "an unknown time" if self.seconds is None else f"about {duration(self.seconds)}"
        text = f"estimate: {took} and {self.memory_bytes / 2**30:.1f} GiB of memory"
        free_bytes = psutil.virtual_memory().available
        if self.memory_bytes > free_bytes:
            text += f", more than the {free_bytes / 2**30:.1f} GiB that are free here"
        return text

    def __add__(self, other: Estimate) -> Estimate:
        """One after the other."""
        seconds = None
        if self.seconds is not None and other.seconds is not None:
            seconds = self.seconds + other.seconds
        return Estimate(seconds, max(self.memory_bytes, other.memory_bytes))

    def as_json(self) -> dict[str, float | None]:
        """The documented form."""
        return {"seconds": self.seconds, "memory_bytes": self.memory_bytes}


NOTHING = Estimate(0.0, 0.0)


def process_age_s() -> float:
    """Seconds since this process began."""
    return time.time() - psutil.Process().create_time()


@dataclass
class Estimator:
    """Estimates launches, and remembers the models that it has timed."""

    age_s: Callable[[], float] = process_age_s
    _costs: dict[Any, Costs] = field(default_factory=dict)
    _start_s: float = 0.0

    def run(self, job: Job, worker_counts: Iterable[int]) -> Estimate:
        """One launch of the job a worker count."""
        return sum((self._launch(job, count) for count in worker_counts), NOTHING)

    def training(self, job: TrainingJob, worker_counts: Iterable[int], num_seeds: int) -> Estimate:
        """One launch of the job a worker count and seed."""
        return sum((self._training(job, count, num_seeds) for count in worker_counts), NOTHING)

    def _launch(self, job: Job, num_workers: int) -> Estimate:
        costs = self._costs_of(job, num_workers)
        built = job.built_methods()
        extra = max(job.find_method(name).extra_warmup_steps for name in built)
        num_steps = plan_rounds(job.num_steps, job.num_warmup_steps + extra).num_steps
        num_batches = num_steps + NUM_SPARE_BATCHES
        turns = [(name, profile) for profile in job.clusters for name in built]
        fixed_s = self._fixed_s(costs, num_workers, len(turns))
        fixed_s += _crowd(num_workers) * costs.batch_s * num_batches
        each_s = [_step_s(name, profile, costs, job.settings, num_workers) for name, profile in turns]
        known_s = [step_s for step_s in each_s if step_s is not None]
        held_bytes = min(costs.batch_bytes * num_batches, MAX_HELD_BYTES // num_workers)
        return Estimate(
            fixed_s + num_steps * sum(known_s) if len(known_s) == len(turns) else None,
            _memory_bytes(costs, job.settings, num_workers, len(built), held_bytes),
        )

    def _training(self, job: TrainingJob, num_workers: int, num_seeds: int) -> Estimate:
        costs = self._costs_of(job, num_workers)
        memory_bytes = _memory_bytes(costs, job.settings, num_workers, 1, costs.batch_bytes)
        if costs.step_s is None:
            return Estimate(None, memory_bytes)
        num_evaluations = sum(job.is_evaluated(epoch) for epoch in range(1, job.num_epochs + 1))
        num_steps = job.open_workload(num_workers).num_steps_an_epoch(num_workers)
        epoch_s = num_steps * _crowd(num_workers) * (costs.step_s + costs.batch_s)
        method_s = epoch_s * (job.num_epochs + EVALUATION_SHARE * num_evaluations)
        launch_s = self._fixed_s(costs, num_workers, len(job.methods)) + len(job.methods) * method_s
        return Estimate(num_seeds * launch_s, memory_bytes)

    def _fixed_s(self, costs: Costs, num_workers: int, num_models: int) -> float:
        return RENDEZVOUS_S + _crowd(num_workers) * (
            WORKER_START * self._start_s + num_models * costs.build_s
        )

    def _costs_of(self, job: Job | TrainingJob, num_workers: int) -> Costs:
        training = job.settings.training
        key = (job.workload, repr(sorted(job.settings.workload.items())), training.dtype, training.autocast)
        if key not in self._costs:
            workload = job.open_workload(num_workers)
            if not self._costs:
                self._start_s = self.age_s()
            self._costs[key] = measure_costs(workload, training, num_workers)
        return self._costs[key]


def _step_s(name: str, profile: Profile, costs: Costs, settings: Settings, num_workers: int) -> float | None:
    real_s = None if costs.step_s is None else _crowd(num_workers) * costs.step_s
    if not profile.is_modelled:
        return real_s
    # Dense work that is real is done inside the time that is modelled for it.
    return max(modelled_s(name, profile, settings), real_s or 0.0)


def modelled_s(name: str, profile: Profile, settings: Settings) -> float:
    """Seconds of a method's step as the simulator has it; everything in turn where it has no schedule."""
    from harness.simulation.costs import Conditions
    from harness.simulation.methods import find, names
    from harness.simulation.paper import model_of
    from harness.simulation.predict import predict

    if name not in names():
        return (profile.lookup_ms + profile.comm_ms + profile.dense_ms) / 1e3
    cuts = settings.method.get("micro_batches")
    method = find(name, None if cuts == "auto" else cuts)
    conditions = Conditions(profile.num_workers)
    model, num_steps = model_of(profile), 2
    return predict(method, model, conditions, num_steps, profile.group_share).step_ms / 1e3


def _memory_bytes(
    costs: Costs, settings: Settings, num_workers: int, num_methods: int, held_bytes: float
) -> float:
    process_bytes = psutil.Process().memory_info().rss
    kind = settings.training.sparse_optimizer
    # Row-wise, a float a row.
    state_bytes = 4 * costs.num_rows if kind not in _COPIES else _COPIES[kind] * costs.table_bytes
    share = min(int(settings.method.get("replicas", 1)), num_workers) / num_workers
    # Of the dense part parameters, gradients and two moments.
    method_bytes = (costs.table_bytes + state_bytes) * share + 4 * costs.dense_bytes
    unsharded_bytes = costs.table_bytes + costs.dense_bytes
    worker_bytes = process_bytes + unsharded_bytes + num_methods * method_bytes + held_bytes
    return process_bytes + num_workers * worker_bytes


def _crowd(num_workers: int) -> float:
    return max(1.0, num_workers / num_cores())
