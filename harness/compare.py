"""`nestpipe run`: one launch a worker count, a row kept for each as it ends, one table at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

from harness import results
from harness.job import Job
from harness.launch import LaunchError, launch
from harness.machine import num_cores
from harness.op_trace import TracedOp, traced, write_trace
from harness.summary import FAILED, MethodRun, Verdict, summarise
from harness.tables import exactness, print_comparison
from harness.worker import WorkerReport

FEW_STEPS = 10


@dataclass
class Outcome:
    """What a comparison brought, complete or not."""

    runs: list[MethodRun]
    remarks: list[str]
    error: LaunchError | None = None


def compare(
    job: Job,
    worker_counts: Sequence[int],
    folder: Path,
    *,
    as_json: bool = False,
    trace: Path | None = None,
) -> None:
    """Measure, save and print; a ClickException at the end where a worker died or a check failed.

    The ops of a traced run replace what is in the file `trace` as soon as there are any.
    """
    if job.settings.training.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda needs an accelerator and torch's CUDA build: use device=cpu")
    folder.mkdir(parents=True, exist_ok=True)
    for num_workers in worker_counts:
        # Once here, so that bad settings and missing data are told before anything starts, and so that
        # workers find a data set that is converted already.
        job.open_workload(num_workers)
    job.built_methods()
    outcome = _measure(job, worker_counts, folder, trace)
    if outcome.runs:
        print_comparison(outcome.runs, _title(job), outcome.remarks)
    if as_json:
        click.echo(json.dumps({"runs": [run.as_json() for run in outcome.runs]}, allow_nan=False))
    _raise_failure(outcome)


def _measure(job: Job, worker_counts: Sequence[int], folder: Path, trace: Path | None) -> Outcome:
    run = results.new_run(job)
    outcome = Outcome([], [])
    if job.num_steps < FEW_STEPS:
        outcome.remarks.append(f"only {job.num_steps} steps measured: quantiles of so few say little")
    for num_workers in worker_counts:
        try:
            reports = launch(job, num_workers)
        except LaunchError as error:
            outcome.error = error
            break
        if not reports[0].batches_held:
            outcome.remarks.append(
                f"{num_workers} workers: the batches do not fit in memory and were made while measuring"
            )
        if num_workers > num_cores():
            outcome.remarks.append(
                f"{num_workers} workers shared {num_cores()} cores: no measure of {num_workers} machines"
            )
        if trace is not None:
            if not outcome.runs:
                trace.write_text("")  # not before: a launch that fails leaves an earlier trace as it is
            write_trace(trace, _traced(reports))
        methods = summarise(reports, checked=job.check_exactness)
        saved = results.save(folder, run, methods, reports)
        outcome.runs += methods
    if outcome.runs:
        outcome.remarks.append(f"saved: {saved[0]}, {saved[1]}")
    return outcome


def _traced(reports: Sequence[WorkerReport]) -> Iterator[TracedOp]:
    for report in reports:
        for method in report.methods:
            yield from traced(
                method.events,
                method=method.method,
                workers=len(reports),
                rank=report.rank,
                batch_size=report.batch_size,
            )


def _title(job: Job) -> str:
    where = f" on {job.clusters[0].name} (emulated: modelled durations)" if job.is_emulated else ""
    return (
        f"{job.workload}{where}, seed {job.seed}, {job.num_steps} measured steps; "
        "step and exposed times: medians of the slowest worker"
    )


def _raise_failure(outcome: Outcome) -> None:
    if outcome.error is not None:
        raise outcome.error
    failed = [run for run in outcome.runs if run.verdict.kind == FAILED]
    if failed:
        described = "; ".join(
            f"{run.method} at {run.workers} workers ({exactness(run.verdict)} in {run.verdict.parameter}, "
            f"{_allowed(run.verdict)})"
            for run in failed
        )
        raise click.ClickException(f"not as exact as promised: {described}")


def _allowed(verdict: Verdict) -> str:
    if verdict.tolerance is None:
        return "must be finite"
    unexplained = "" if verdict.arbiter is None else " and rounding does not explain it"
    return f"allowed {verdict.tolerance:g}{unexplained}"
