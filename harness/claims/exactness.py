"""Claims about weights and rows: one run of all methods that promise something, with nothing modelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from harness.claims.experiments import Found, Place
from harness.job import Job
from harness.launch import launch
from harness.summary import MethodRun, summarise
from harness.worker import WorkerReport
from nestpipe.schedule import OpKind

METHODS = ("torchrec", "sync", "dbp", "fwp", "nestpipe", "uniemb")
NUM_WORKERS = 2
NUM_STEPS, NUM_WARMUP_STEPS = 20, 5
WORKLOAD = "synthetic"


class Exactness:
    """Rows are methods; columns are differences, staleness and the time of the `sync` op."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir

    def measure(self, places: Sequence[Place]) -> Found:
        """Run, compare weights, count stale rows and trace, all in one launch."""
        job = Job(
            methods=METHODS,
            workload=WORKLOAD,
            num_steps=NUM_STEPS,
            num_warmup_steps=NUM_WARMUP_STEPS,
            seed=0,
            cache_dir=self._cache_dir,
            check_exactness=True,
            check_freshness=True,
            keep_trace=True,
        )
        values = values_of(launch(job, NUM_WORKERS), places)
        return Found(values, {"num_workers": NUM_WORKERS, "steps": NUM_STEPS, "workload": WORKLOAD})


def values_of(reports: Sequence[WorkerReport], places: Iterable[Place]) -> dict[Place, float | None]:
    """The figures out of the workers' reports; None for a difference that is not finite."""
    runs = {run.method: run for run in summarise(reports, checked=True)}
    return {(row, column): _value(reports, runs[row], column) for row, column in places}


def _value(reports: Sequence[WorkerReport], run: MethodRun, column: str) -> float | None:
    if column == "max_difference":
        return run.verdict.max_difference
    if column == "staleness_steps":
        return None if run.freshness is None else float(run.freshness.max_staleness)
    if column == "sync_ms":
        return _sync_ms(reports, run.method)
    raise ValueError(f"experiment 'exactness' has no column {column!r}")


def _sync_ms(reports: Sequence[WorkerReport], method: str) -> float | None:
    """The median of the dual buffers' synchronisation, over steps and workers."""
    taken = [
        1e3 * (event.finished - event.started)
        for report in reports
        for own in report.methods
        if own.method == method
        for event in own.events
        if event.op.kind is OpKind.SYNC
    ]
    return median(taken) if taken else None
