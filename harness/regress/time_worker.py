"""A worker of a timed launch: the base and the methods take turns in short rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from harness.batches import NUM_SPARE_BATCHES, BatchSource
from harness.emulation.cluster import Cluster
from harness.emulation.fabric import BACKEND, Fabric, register
from harness.job import NUM_SETTLE_STEPS, Job, Plan
from harness.process import process_group, run_recorded
from harness.rounds import Contestant, run_rounds
from harness.setup import autocast, make_setup
from nestpipe.trace import OpEvent, breakdown


@dataclass(frozen=True)
class TimedJob:
    """A comparison in `num_rounds` rounds; `job.num_steps` are those of a round."""

    job: Job
    num_rounds: int

    @property
    def timeout_s(self) -> float:
        """Seconds that a worker waits for its peers."""
        return self.job.timeout_s

    @property
    def plan(self) -> Plan:
        """The rounds of the launch."""
        rounds = (self.job.num_steps,) * self.num_rounds
        return Plan(self.job.num_warmup_steps, NUM_SETTLE_STEPS, rounds)


@dataclass(frozen=True)
class MethodTimes:
    """Medians of one method on one worker, one a round, in milliseconds."""

    method: str
    step_ms: list[float]
    busy_ms: Mapping[str, list[float]]
    """By op: how long lanes were busy with it in a step; empty for methods that keep no trace."""


def run_timing(timed: TimedJob) -> list[MethodTimes]:
    """The function that every worker of the launch runs."""
    return run_recorded(_run, timed)


def _run(timed: TimedJob) -> list[MethodTimes]:
    training = timed.job.settings.training
    fabric = register() if timed.job.is_emulated else None
    with process_group(training, timed.timeout_s, BACKEND if fabric else None) as device:
        with autocast(training, device):
            times = _measure(timed, device, fabric)
        dist.barrier()
        if fabric is not None:
            fabric.close()
    return times


def _measure(timed: TimedJob, device: torch.device, fabric: Fabric | None) -> list[MethodTimes]:
    job = timed.job
    methods = {name: job.find_method(name) for name in job.methods}
    extra = max(method.extra_warmup_steps for method in methods.values())
    plan = replace(timed.plan, num_warmup_steps=job.num_warmup_steps + extra)
    workload = job.open_workload(dist.get_world_size())
    source = BatchSource(workload, plan.num_steps + NUM_SPARE_BATCHES)
    setup_for = partial(make_setup, job.settings, workload, device, plan.num_steps)
    cluster = None if fabric is None else Cluster(fabric, workload.batch_size)
    if cluster is not None:
        cluster.calibrate(setup_for, source.batches())
        cluster.use(job.clusters[0])
    events: dict[str, list[OpEvent]] = {name: [] for name in job.methods}
    contestants = []
    for name, method in methods.items():
        setup = replace(setup_for(), events=events[name])
        runner = method.build(setup) if cluster is None else cluster.build(method, setup)
        contestants.append(Contestant(name, runner, source.batches()))
    run_rounds(contestants, plan, device, lambda num_steps: None)
    times = [_times(contestant, events[contestant.name], plan) for contestant in contestants]
    while contestants:
        contestants.pop().runner.close()
    return times


def _times(contestant: Contestant, events: list[OpEvent], plan: Plan) -> MethodTimes:
    num_rounds = len(plan.measured)
    by_round = np.array(contestant.step_ms).reshape(num_rounds, -1)
    return MethodTimes(contestant.name, np.median(by_round, axis=1).tolist(), busy_by_round(events, plan))


def busy_by_round(events: list[OpEvent], plan: Plan) -> dict[str, list[float]]:
    """By op kind the median busy milliseconds of a round's measured steps, for rounds of equal length."""
    # Events of the look-ahead belong to steps that have no update yet: the breakdown leaves them out.
    busy = {step.step: step.busy_ms for step in breakdown(events)}
    found: dict[str, list[float]] = {}
    for kind in sorted({kind for by_kind in busy.values() for kind in by_kind}):
        rounds, first = [], plan.num_warmup_steps
        for num_steps in plan.measured:
            first += plan.num_settle_steps
            own = [busy[step].get(kind, 0.0) for step in range(first, first + num_steps)]
            rounds.append(float(np.median(own)))
            first += num_steps
        found[kind.value] = rounds
    return found
