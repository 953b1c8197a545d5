"""A cell as a launch of real workers; what launches is imported when the first cell is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harness.catalog import check_methods, method_settings, workload_keys
from harness.emulation import profiles
from harness.job import Job
from harness.machine import commit, fingerprint, versions
from harness.options import parse_settings
from harness.sweep.journal import Measurement, Provenance
from harness.sweep.plan import Cell, Sweep

if TYPE_CHECKING:
    from harness.summary import MethodRun
    from harness.worker import WorkerReport


def provenance() -> Provenance:
    """The code and the machine that measure now."""
    head, dirty = commit()
    return Provenance(head, dirty, versions(), asdict(fingerprint()))


def jobs_of(sweep: Sweep, cache_dir: Path) -> dict[str, Job]:
    """The job of every cell by its identity.

    ValueError, naming the step, for what cannot be run at all, and for cells of which some are emulated and
    some are not.
    """
    jobs: dict[str, Job] = {}
    for step, cell in sweep.cells():
        try:
            jobs[cell.identity] = _job(cell, sweep.timeout_s, cache_dir)
        except ValueError as error:
            raise ValueError(f"step {step.name!r}: {error}") from None
    if len({job.is_emulated for job in jobs.values()}) > 1:
        raise ValueError("cluster: some steps are emulated and some are not, and one table holds either kind")
    return jobs


def _job(cell: Cell, timeout_s: float, cache_dir: Path) -> Job:
    check_methods((cell.method,))
    is_local = cell.cluster == profiles.LOCAL.name
    cluster_keys = [] if is_local else profiles.field_names()
    pairs = [f"{key}={value}" for key, value in cell.settings]
    settings = parse_settings(
        pairs, workload_keys(cell.workload), cluster_keys, method_settings((cell.method,))
    )
    profile = profiles.get(cell.cluster, settings.cluster)
    if profile.is_modelled:
        profile.processes_stand_for(cell.workers)
    return Job(
        methods=(cell.method,),
        workload=cell.workload,
        num_steps=cell.num_steps,
        num_warmup_steps=cell.num_warmup_steps,
        seed=cell.seed,
        cache_dir=cache_dir,
        settings=settings,
        clusters=(profile,),
        check_exactness=cell.check,
        timeout_s=timeout_s,
    )


@dataclass(frozen=True)
class Launcher:
    """Measures cells, each by a launch of its own."""

    jobs: Mapping[str, Job]
    """By the identity of the cell."""

    def __call__(self, cell: Cell) -> Measurement:
        """Launch the cell's job; the exceptions are those of `harness.launch.launch` and of its workload."""
        from harness.launch import launch
        from harness.summary import summarise

        job = self.jobs[cell.identity]
        # Workers then find a data set that is converted already.
        job.open_workload(cell.workers)
        reports = launch(job, cell.workers)
        (run,) = summarise(reports, checked=cell.check)
        return measurement_of(run, reports)


def measurement_of(run: MethodRun, reports: list[WorkerReport]) -> Measurement:
    """What a sweep keeps of a launch of one method."""
    from harness.summary import finite

    slowest = max((report.methods[0] for report in reports), key=lambda method: median(method.step_ms))
    return Measurement(
        batch_size=run.batch_size,
        step_ms_p10=run.step_ms.p10,
        step_ms_p50=run.step_ms.p50,
        step_ms_p90=run.step_ms.p90,
        qps=run.qps,
        lookup_ms=run.lookup_ms,
        comm_ms=run.comm_ms,
        dense_ms=run.dense_ms,
        other_ms=run.other_ms,
        final_loss=finite(run.loss[-1]),
        exactness=run.verdict.kind,
        max_difference=run.verdict.max_difference,
        step_ms=tuple(slowest.step_ms),
        notes=run.notes,
    )
