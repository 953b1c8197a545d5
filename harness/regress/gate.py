"""One comparison with a reference, or one update of it: what is measured, for how long, and what for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.regress.counters import collect
from harness.regress.experiment import Experiment
from harness.regress.findings import Finding, Verdict, compare, compare_times, difference_of
from harness.regress.reference import Counter, Reference, TimedLaunch, Times, save, times_here, updated
from harness.regress.times import measure

if TYPE_CHECKING:
    from baselines.interface import Method

NUM_REFERENCE_LAUNCHES = 8
MIN_LAUNCHES, MAX_LAUNCHES = 2, 6
"""Of a comparison: it ends as soon as every method's step is decided."""
MIN_SHIFTED_LAUNCHES = 3
"""Of one that finds anything slower or faster: each look may err, so what two launches say is not all."""


@dataclass(frozen=True)
class Conditions:
    """How a gate runs, apart from what its experiment says."""

    cache_dir: Path
    timeout_s: float = 120.0
    times: bool = False
    num_launches: int | None = None
    """Timed launches: all of an update, at most so many of a comparison. None: the defaults above."""
    find_method: Callable[[str], Method] | None = None
    tell: Callable[[str], None] = lambda line: None
    """Told what is about to run."""


def check(reference: Reference, conditions: Conditions) -> list[Finding]:
    """Measure what the reference's experiment says and compare."""
    counters = _counters(reference.experiment, conditions)
    times = _times_until_decided(reference, conditions) if conditions.times else None
    return compare(reference, counters, times)


def record(
    path: Path, old: Reference | None, experiment: Experiment, reason: str, conditions: Conditions
) -> Reference:
    """Measure and write a reference, with times only where they are asked for."""
    counters = _counters(experiment, conditions)
    times = None
    if conditions.times:
        num_launches = conditions.num_launches or NUM_REFERENCE_LAUNCHES
        times = times_here(list(_launches(experiment, num_launches, conditions)))
    reference = updated(old, experiment, counters, times, reason)
    save(path, reference)
    return reference


def most_launches(reference: Reference, conditions: Conditions) -> int:
    """Timed launches of a comparison at the most."""
    if not conditions.times:
        return 0
    if reference.times is None or difference_of(reference.times, times_here(())):
        return 1  # nothing can be compared, so one is enough to show the ratios
    return conditions.num_launches or MAX_LAUNCHES


def is_enough(reference: Times | None, now: Times) -> bool:
    """Whether no step needs another launch to be told, and no shift another one to be believed."""
    num_launches = len(now.launches)
    findings = list(compare_times(reference, now))
    if num_launches < MIN_LAUNCHES or any(
        finding.verdict == Verdict.INCONCLUSIVE and finding.group == "time" for finding in findings
    ):
        return False
    return num_launches >= MIN_SHIFTED_LAUNCHES or not any(
        finding.verdict in (Verdict.SLOWER, Verdict.FASTER) for finding in findings
    )


def _counters(experiment: Experiment, conditions: Conditions) -> list[Counter]:
    conditions.tell("counting")
    return collect(experiment, conditions.cache_dir, conditions.timeout_s, conditions.find_method)


def _times_until_decided(reference: Reference, conditions: Conditions) -> Times:
    """Launches until the rank test has its answer: each look may err, so there are few of them."""
    before = reference.times
    launches: list[TimedLaunch] = []
    for launch in _launches(reference.experiment, most_launches(reference, conditions), conditions):
        launches.append(launch)
        if is_enough(before, times_here(launches)):
            break
    return times_here(launches)


def _launches(experiment: Experiment, num_launches: int, conditions: Conditions) -> Iterator[TimedLaunch]:
    timed = measure(
        experiment.timing, num_launches, conditions.cache_dir, conditions.timeout_s, conditions.find_method
    )
    for number in range(1, num_launches + 1):
        conditions.tell(f"timed launch {number} of at most {num_launches}")
        yield next(timed)
