"""What one worker of a launch does: build every method, step them in rounds, compare them, report."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from baselines.interface import Exactness, Method, Runner, Setup
from harness.allocator import keep_freed_memory
from harness.arbiters import Arbitration, Dispute, Repetition, arbitrate, find_disputes, measured_references
from harness.batches import NUM_SPARE_BATCHES, BatchSource
from harness.emulation.cluster import Cluster, EmulatedRunner
from harness.emulation.fabric import BACKEND, Fabric, register
from harness.emulation.profiles import LOCAL
from harness.exactness import Difference, compare_runners
from harness.job import Job, plan_rounds
from harness.options import Training
from harness.progress import StepProgress
from harness.rounds import Contestant, run_rounds
from nestpipe.freshness import FreshnessMeter
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer
from nestpipe.schedule import Schedule
from nestpipe.trace import OpEvent
from workloads.interface import Workload

STAND_BACK_S = 5.0
_LOST_PEER = ("closed by peer", "reset by peer", "Broken pipe", "Timed out waiting", "timed out")

_SPARSE_OPTIMIZERS: dict[str, Callable[[float], SparseOptimizer]] = {
    "rowwise_adagrad": RowWiseAdagrad,
    "sgd": SGD,
    "adagrad": Adagrad,
    "adam": Adam,
}


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
    try:
        report = record(_run)(job)
    except BaseException:
        # The cause is in torchrun's error file. Threads of a method may be waiting for peers that are
        # gone, and would keep an ordinary exit waiting as well.
        sys.stderr.flush()
        os._exit(1)
    assert report is not None
    return report


def _run(job: Job) -> WorkerReport:
    torch.set_num_threads(1)
    keep_freed_memory()
    _quiet_libraries()
    device = _device(job.settings.training)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    fabric = register() if job.is_emulated else None
    dist.init_process_group(BACKEND if fabric else backend, timeout=timedelta(seconds=job.timeout_s))
    try:
        report = _compare(job, device, fabric)
        dist.barrier()
    except Exception as error:
        if _lost_peer(error):
            # This worker is a victim: let the launcher see the culprit first.
            time.sleep(STAND_BACK_S)
        raise
    if fabric is not None:
        fabric.close()
    dist.destroy_process_group()
    # Gloo's threads now and then abort an interpreter that exits the ordinary way, after all was done.
    atexit.register(os._exit, 0)
    return report


def _quiet_libraries() -> None:
    """Keep advice that TorchRec's authors would have to follow off the user's screen."""
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*broadcast_buffers.*")
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    logging.getLogger().addFilter(
        lambda entry: entry.levelno >= logging.ERROR or "torchrec" not in Path(entry.pathname).parts
    )


def _compare(job: Job, device: torch.device, fabric: Fabric | None) -> WorkerReport:
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    workload = job.open_workload(num_workers)
    methods = {name: job.find_method(name) for name in job.built_methods()}
    extra = max(method.extra_warmup_steps for method in methods.values())
    plan = plan_rounds(job.num_steps, job.num_warmup_steps + extra)
    source = BatchSource(workload, plan.num_steps + NUM_SPARE_BATCHES)
    make_setup = partial(_setup, job, workload, device)
    dtype = job.settings.training.dtype
    cluster = None if fabric is None else Cluster(fabric, workload.batch_size)
    if cluster is not None:
        cluster.calibrate(partial(make_setup, dtype), source.batches())
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
                        replace(make_setup(dtype), events=events.get(name), freshness=meters.get(name)),
                    ),
                    source.batches(),
                )
                for name, method in methods.items()
            }
            run_rounds(list(contestants.values()), plan, progress.advance)
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
                job, measured, contestants, Repetition(methods, make_setup, source, plan)
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


def _setup(job: Job, workload: Workload, device: torch.device, dtype: str) -> Setup:
    training = job.settings.training

    def dense_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=training.dense_lr)

    return Setup(
        model=workload.model(torch.device("cpu"), getattr(torch, dtype)),
        sparse_optimizer=_SPARSE_OPTIMIZERS[training.sparse_optimizer](training.sparse_lr),
        dense_optimizer=dense_optimizer,
        device=device,
        options=job.settings.method,
    )


def _device(training: Training) -> torch.device:
    if training.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


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


def _lost_peer(error: BaseException | None) -> bool:
    """Whether the exception, or one that led to it, says that a peer went away."""
    while error is not None:
        if any(sign in str(error) for sign in _LOST_PEER):
            return True
        error = error.__cause__ or error.__context__
    return False
