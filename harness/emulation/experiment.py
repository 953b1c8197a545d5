"""Runs methods on emulated clusters and says what their steps took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from harness.catalog import workload_keys
from harness.emulation import profiles
from harness.emulation.model import modelled_step_ms
from harness.emulation.profiles import Profile
from harness.job import Job
from harness.options import Settings, parse_settings
from harness.reproduce.measured import Measured
from harness.worker import MethodReport, WorkerReport
from workloads.cache import default_cache_dir

WORKLOAD = "synthetic"
# Replicas of 2D are averaged now and then, as a system that trains at this scale would.
DEFAULT_SETTINGS = {"preset": "paper-ratio", "sync_every": "20"}
NUM_WARMUP_STEPS = 3


def run_emulated(
    methods: Sequence[str],
    profile_names: Sequence[str],
    num_workers: int,
    steps: int,
    *,
    profile_overrides: Mapping[str, float],
    settings: Mapping[str, str],
) -> dict[tuple[str, int], Measured]:
    """One launch: every method on every profile, keyed by method and emulated workers.

    `settings` are those of `nestpipe run --set`. Raises ValueError for a profile that the real workers
    do not divide, and LaunchError if a worker fails.
    """
    from harness.launch import launch

    job = emulated_job(
        methods, profile_names, num_workers, steps, profile_overrides=profile_overrides, settings=settings
    )
    reports = launch(job, num_workers)
    return {
        (name, cluster.num_workers): _measured(cluster, _slowest(reports, name, cluster.name))
        for cluster in job.clusters
        for name in methods
    }


def emulated_job(
    methods: Sequence[str],
    profile_names: Sequence[str],
    num_workers: int,
    steps: int,
    *,
    profile_overrides: Mapping[str, float],
    settings: Mapping[str, str],
) -> Job:
    """The launch of `run_emulated`, whose parameters it takes."""
    clusters = tuple(profiles.get(name, profile_overrides) for name in profile_names)
    for cluster in clusters:
        cluster.processes_stand_for(num_workers)
    return Job(
        methods=tuple(methods),
        workload=WORKLOAD,
        num_steps=steps,
        num_warmup_steps=NUM_WARMUP_STEPS,
        seed=0,
        cache_dir=default_cache_dir(),
        settings=_settings({**DEFAULT_SETTINGS, **settings}),
        clusters=clusters,
        timeout_s=300.0,
    )


def _settings(settings: Mapping[str, str]) -> Settings:
    pairs = [f"{key}={value}" for key, value in settings.items()]
    return parse_settings(pairs, workload_keys(WORKLOAD))


def _slowest(reports: Sequence[WorkerReport], method: str, cluster: str) -> MethodReport:
    """The method's report of the worker whose median step is the longest."""
    mine = [m for r in reports for m in r.methods if (m.method, m.cluster) == (method, cluster)]
    return max(mine, key=lambda report: median(report.step_ms))


def _measured(cluster: Profile, report: MethodReport) -> Measured:
    latency_ms = cluster.latency_us_per_peer * cluster.num_workers / 1e3
    modelled_ms = modelled_step_ms(cluster, report.schedule, report.total_comm_ms, latency_ms)
    step_ms = median(report.step_ms)
    exposed = [median(part) for part in (report.lookup_ms, report.comm_ms, report.dense_ms)]
    return Measured(
        step_ms=step_ms,
        lookup_ms=exposed[0],
        comm_ms=exposed[1],
        dense_ms=exposed[2],
        other_ms=step_ms - sum(exposed),
        total_comm_ms=report.total_comm_ms,
        modelled_step_ms=modelled_ms,
        modelled_dense_ms=cluster.dense_ms,
        real_overhead_ms=step_ms - modelled_ms,
        step_samples_ms=tuple(report.step_ms),
    )
