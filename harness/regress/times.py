"""Timed launches as ratios: each round's step and busy times over the base's step in the same round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.regress.experiment import Timing, settings_of
from harness.regress.reference import TimedLaunch

if TYPE_CHECKING:
    from baselines.interface import Method
    from harness.job import Job
    from harness.regress.time_worker import MethodTimes


def measure(
    timing: Timing,
    num_launches: int,
    cache_dir: Path,
    timeout_s: float,
    find_method: Callable[[str], Method] | None = None,
) -> Iterator[TimedLaunch]:
    """One launch after the other, in new processes each; LaunchError where a worker fails."""
    from harness.launch import launch_function
    from harness.regress.time_worker import TimedJob, run_timing

    job = timing_job(timing, cache_dir, timeout_s, find_method)
    for _ in range(num_launches):
        yield as_ratios(launch_function(run_timing, TimedJob(job, timing.num_rounds), timing.num_workers))


def timing_job(
    timing: Timing,
    cache_dir: Path,
    timeout_s: float,
    find_method: Callable[[str], Method] | None = None,
) -> Job:
    """What the workers of a timed launch are told, but for the number of rounds."""
    from harness.catalog import get_method
    from harness.job import Job

    settings, profile = settings_of(timing)
    return Job(
        methods=(timing.base, *timing.methods),
        workload=timing.workload,
        num_steps=timing.steps_a_round,
        num_warmup_steps=timing.num_warmup_steps,
        seed=0,
        cache_dir=cache_dir,
        settings=settings,
        clusters=(profile,),
        timeout_s=timeout_s,
        find_method=find_method or get_method,
    )


def as_ratios(reports: Sequence[Sequence[MethodTimes]]) -> TimedLaunch:
    """The reports of a launch's workers, the base's first in each.

    Means over the workers: they go in step, so that no one of them is slower than the others.
    """
    by_method = list(zip(*reports, strict=True))
    base = np.mean([worker.step_ms for worker in by_method[0]], axis=0)
    steps, ops = {}, {}
    for workers in by_method[1:]:
        name = workers[0].method
        steps[name] = _over(base, [worker.step_ms for worker in workers])
        ops[name] = {op: _over(base, [worker.busy_ms[op] for worker in workers]) for op in workers[0].busy_ms}
    return TimedLaunch(round(float(np.median(base)), 3), steps, ops)


def _over(base: np.ndarray, workers: Sequence[Sequence[float]]) -> list[float]:
    return [round(float(value), 5) for value in np.mean(workers, axis=0) / base]
