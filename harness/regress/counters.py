"""Every counter of an experiment, from a short real run, the simulator and the compiled kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.emulation import profiles
from harness.errors import LaunchError
from harness.regress.experiment import Counting, Experiment, Simulating, settings_of
from harness.regress.reference import Counter

if TYPE_CHECKING:
    from baselines.interface import Method
    from harness.job import Job
    from harness.regress.count_worker import MethodCounts

KERNELS = Path(__file__).resolve().parents[2] / "results" / "reference" / "kernels-aot.json"
NUM_WARMUP_STEPS = 3
PEAK_TOLERANCE = 0.1
"""What is alive when a dense forward ends depends on how far the other lanes are."""
ROUNDING = 1e-6
"""Simulated times are sums of floats, which another C library may add up differently."""


def collect(
    experiment: Experiment,
    cache_dir: Path,
    timeout_s: float,
    find_method: Callable[[str], Method] | None = None,
) -> list[Counter]:
    """All counters; launches the counting run. LaunchError where one of its workers fails."""
    counters = [*simulated(experiment.simulating)]
    if experiment.kernels:
        counters += kernels(KERNELS)
    return [*counted(experiment.counting, cache_dir, timeout_s, find_method), *counters]


def counted(
    counting: Counting, cache_dir: Path, timeout_s: float, find_method: Callable[[str], Method] | None = None
) -> Iterator[Counter]:
    """What a short real run moves and issues a step.

    Bytes and rows are summed over the workers; collectives and ops are one worker's, where all agree.
    """
    from harness.launch import launch_function
    from harness.regress.count_worker import run_counting

    job = counting_job(counting, cache_dir, timeout_s, find_method)
    reports = launch_function(run_counting, job, counting.num_workers)
    for workers in zip(*reports, strict=True):
        yield from _of_method(workers, counting.num_steps)


def counting_job(
    counting: Counting,
    cache_dir: Path,
    timeout_s: float,
    find_method: Callable[[str], Method] | None = None,
) -> Job:
    """What the workers of the counting run are told."""
    from harness.catalog import get_method
    from harness.job import Job

    settings, _ = settings_of(counting)
    return Job(
        methods=counting.methods,
        workload=counting.workload,
        num_steps=counting.num_steps,
        num_warmup_steps=NUM_WARMUP_STEPS,
        seed=0,
        cache_dir=cache_dir,
        settings=settings,
        timeout_s=timeout_s,
        find_method=find_method or get_method,
    )


def _of_method(workers: Sequence[MethodCounts], num_steps: int) -> Iterator[Counter]:
    first = workers[0]
    for other in workers[1:]:
        if other.num_collectives != first.num_collectives or other.num_ops != first.num_ops:
            raise LaunchError(f"workers of {first.method} have not issued the same collectives and ops")
    prefix = f"count/{first.method}"
    for kind, number in sorted(first.num_collectives.items()):
        yield Counter(f"{prefix}/{kind}", number / num_steps, "a step")
        num_bytes = sum(worker.num_bytes[kind] for worker in workers)
        yield Counter(f"{prefix}/{kind}, bytes", num_bytes / num_steps, "bytes a step")
    for kind in first.num_rows:
        num_rows = sum(worker.num_rows[kind] for worker in workers)
        yield Counter(f"{prefix}/rows {kind}", num_rows / num_steps, "rows a step")
    for kind, number in sorted(first.num_ops.items()):
        yield Counter(f"{prefix}/op {kind}", number / num_steps, "a step")
    peak = max(worker.peak_tensor_bytes for worker in workers)
    yield Counter(f"{prefix}/peak tensors", peak, "bytes", PEAK_TOLERANCE)


def simulated(simulating: Simulating) -> Iterator[Counter]:
    """The steady state of each method on each cluster: its step, and what of it is exposed."""
    from harness.simulation.costs import Conditions
    from harness.simulation.methods import find
    from harness.simulation.paper import model_of
    from harness.simulation.predict import predict

    for cluster in simulating.clusters:
        profile = profiles.get(cluster)
        model = model_of(profile)
        for name in simulating.methods:
            step = predict(
                find(name), model, Conditions(profile.num_workers), group_share=profile.group_share
            )
            times = {
                "step": step.step_ms,
                "exposed lookup": step.lookup_ms,
                "exposed comm": step.comm_ms,
                "dense": step.dense_ms,
            }
            for part, value in times.items():
                yield Counter(f"simulated/{name}/{cluster}/{part}", round(value, 9), "ms", ROUNDING)


def kernels(path: Path) -> Iterator[Counter]:
    """Registers and stack of each compiled kernel, from the committed results of compiling them.

    FileNotFoundError outside a checkout; ValueError for a file of another form.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: the compiled kernels' registers are missing; use a checkout, or set the experiment's "
            '"kernels" to false'
        )
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["kernels"]
        for row in rows:
            name = f"kernel/{row['op']}/{row['variant']}/{row['architecture']}"
            yield Counter(f"{name}/registers", row["registers"], "a thread")
            yield Counter(f"{name}/stack", row["stack_bytes"], "bytes a thread")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no results of compiled kernels ({error}); restore the file") from None
