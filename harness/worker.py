"""What one worker of a launch does: build every method, step them in rounds, compare them, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist

from baselines.interface import Exactness, Method, Runner, Setup
from harness.arbiters import Arbitration, Dispute, Repetition, arbitrate, find_disputes, measured_references
from harness.batches import NUM_SPARE_BATCHES, BatchSource
from harness.emulation.cluster import Cluster, EmulatedRunner
from harness.emulation.fabric import BACKEND, Fabric, register
from harness.emulation.profiles import LOCAL
from harness.exactness import Difference, compare_runners
from harness.job import Job, plan_rounds
from harness.process import process_group, run_recorded
from harness.progress import StepProgress
from harness.rounds import Contestant, run_rounds
from harness.setup import autocast, make_setup
from nestpipe.freshness import FreshnessMeter
from nestpipe.schedule import Schedule
from nestpipe.trace import OpEvent


@dataclass(frozen=True)
class MethodReport:
    """One method's measured steps on one worker."""

    method: str
    step_ms: list[float]
    lookup_ms: list[float]
    comm_ms: list[float]
    dense_ms: list[float]
    loss: list[float]
    note: str
    promise: Exactness | None
    difference: Difference | None = None
    """Against the promise's method, on rank 0 of a checked run."""
    total_comm_ms: float = 0.0
    """Busy time of this worker's emulated link with rows and gradients, a step."""
    schedule: Schedule | None = None
    """In force at the end, for a method on the engine."""
    cluster: str = "local"
    events: tuple[OpEvent, ...] = ()
    """Of the steps after the warm-up, for a method on the engine in a traced run."""
    row_bytes: float = 0.0
    """Of rows and row gradients on this worker's emulated link in a step."""
    num_rows_read: float = 0.0
    """Unique rows that this worker's emulated host tier reads in a step."""
    num_rows_written: float = 0.0
    """Likewise."""
    rows_by_staleness: tuple[int, ...] | None = None
    """Rows read on this worker that were 0, 1, 2, ... steps stale, of a method on the engine, if counted."""
    arbitration: Arbitration | None = None
    """On rank 0 of a checked run, where the difference exceeds the promise and rounding may be why."""


@dataclass(frozen=True)
class WorkerReport:
    """What a worker sends back to the launcher."""

    rank: int
    batch_size: int
    num_warmup_steps: int
    batches_held: bool
    methods: tuple[MethodReport, ...]


def run_worker(job: Job) -> WorkerReport:
    """The function that every worker of a launch runs."""
    return run_recorded(_run, job)


def _run(job: Job) -> WorkerReport:
    training = job.settings.training
    fabric = register() if job.is_emulated else None
    with process_group(training, job.timeout_s, BACKEND if fabric else None) as device:
        with autocast(training, device):
            report = _compare(job, device, fabric)
        dist.barrier()
        if fabric is not None:
            fabric.close()
    return report


def _compare(job: Job, device: torch.device, fabric: Fabric | None) -> WorkerReport:
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    workload = job.open_workload(num_workers)
    methods = {name: job.find_method(name) for name in job.built_methods()}
    extra = max(method.extra_warmup_steps for method in methods.values())
    plan = plan_rounds(job.num_steps, job.num_warmup_steps + extra)
    source = BatchSource(workload, plan.num_steps + NUM_SPARE_BATCHES)
    setup_for = partial(make_setup, job.settings, workload, device, plan.num_steps)
    dtype = job.settings.training.dtype
    cluster = None if fabric is None else Cluster(fabric, workload.batch_size)
    if cluster is not None:
        cluster.calibrate(partial(setup_for, dtype), source.batches())
    reports: list[MethodReport] = []
    label = f"{num_workers} worker{'s' if num_workers > 1 else ''}"
    num_steps = len(job.clusters) * len(methods) * plan.num_steps
    with StepProgress(num_steps, label, enabled=rank == 0) as progress:
        for profile in job.clusters:
            if cluster is not None:
                cluster.use(profile)
            build = cluster.build if cluster is not None else _build
            events: dict[str, list[OpEvent]] = {name: [] for name in methods} if job.keep_trace else {}
            meters = {name: FreshnessMeter() for name in methods} if job.check_freshness else {}
            contestants = {
                name: Contestant(
                    name,
                    build(
                        method,
                        replace(
                            setup_for(dtype),
                            events=events.get(name),
                            freshness=meters.get(name),
                            check_bounds=job.check_bounds,
                        ),
                    ),
                    source.batches(),
                )
                for name, method in methods.items()
            }
            run_rounds(list(contestants.values()), plan, device, progress.advance)
            measured = [_method_report(contestants[name], methods[name].exactness) for name in job.methods]
            measured = [
                replace(
                    report,
                    cluster=profile.name,
                    rows_by_staleness=_rows_by_staleness(report, meters),
                    events=tuple(
                        e for e in events.get(report.method, ()) if e.op.step >= plan.num_warmup_steps
                    ),
                )
                for report in measured
            ]
            if cluster is not None:
                # A check moves whole tables and may train again: no part of what is emulated.
                cluster.use(LOCAL)
            reports += _check_and_close(
                job, measured, contestants, Repetition(methods, setup_for, source, plan)
            )
    return WorkerReport(rank, workload.batch_size, plan.num_warmup_steps, source.held, tuple(reports))


def _build(method: Method, setup: Setup) -> Runner:
    return method.build(setup)


def _check_and_close(
    job: Job, reports: list[MethodReport], contestants: dict[str, Contestant], repetition: Repetition
) -> list[MethodReport]:
    """In a checked run the reports with how exact each method is; a collective that empties `contestants`."""
    runners = {name: contestant.runner for name, contestant in contestants.items()}
    differences: dict[str, Difference] = {}
    disputes: list[Dispute] = []
    if job.check_exactness:
        promised = {report.method: report.promise for report in reports if report.promise is not None}
        differences = compare_runners(runners, promised, dist.get_rank())
        disputes = find_disputes(differences, repetition.methods, job.settings.training.dtype)
    references = measured_references(disputes, runners)
    contestants.clear()
    while runners:
        # Out of the dict as well, so that its memory is free for the trainings of the arbiters.
        runners.popitem()[1].close()
    arbitrations = arbitrate(disputes, references, repetition, job.seed)
    return [
        replace(
            report,
            difference=differences.get(report.method),
            arbitration=arbitrations.get(report.method),
        )
        for report in reports
    ]


def _method_report(contestant: Contestant, promise: Exactness | None) -> MethodReport:
    times, runner = contestant.times, contestant.runner
    emulated = runner if isinstance(runner, EmulatedRunner) else None
    rows_read, rows_written = emulated.rows_a_step() if emulated else (0.0, 0.0)
    return MethodReport(
        method=contestant.name,
        step_ms=contestant.step_ms,
        lookup_ms=[step.lookup_ms for step in times],
        comm_ms=[step.comm_ms for step in times],
        dense_ms=[step.dense_ms for step in times],
        loss=[float(loss) for loss in contestant.losses],
        note=contestant.runner.note,
        total_comm_ms=emulated.total_comm_ms() if emulated else 0.0,
        row_bytes=emulated.row_bytes_a_step() if emulated else 0.0,
        num_rows_read=rows_read,
        num_rows_written=rows_written,
        schedule=runner.schedule,
        promise=promise,
    )


def _rows_by_staleness(report: MethodReport, meters: Mapping[str, FreshnessMeter]) -> tuple[int, ...] | None:
    if report.schedule is None or report.method not in meters:
        return None
    return tuple(meters[report.method].rows_by_staleness)
