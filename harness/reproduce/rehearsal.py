"""What a reproduction on the emulated cluster will take: its launches, counted without launching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.emulation.experiment import emulated_job
from harness.estimate import NOTHING, Estimate, Estimator
from harness.reproduce.items import Item
from harness.reproduce.measured import Run
from harness.reproduce.sources import EmulatedSource


@dataclass
class Rehearsal:
    """Stands in for `run_emulated`: adds up what each launch is expected to take."""

    estimator: Estimator
    total: Estimate = NOTHING

    def __call__(
        self,
        methods: Sequence[str],
        profile_names: Sequence[str],
        num_workers: int,
        steps: int,
        *,
        profile_overrides: Mapping[str, float],
        settings: Mapping[str, str],
    ) -> Mapping[tuple[str, int], Any]:
        """Count one launch; its results are None."""
        job = emulated_job(
            methods,
            profile_names,
            num_workers,
            steps,
            profile_overrides=profile_overrides,
            settings=settings,
        )
        self.total += self.estimator.run(job, [num_workers])
        return {(name, cluster.num_workers): None for cluster in job.clusters for name in methods}


def estimate_reproduction(
    items: Sequence[Item], num_workers: int, steps: int, estimator: Estimator
) -> Estimate:
    """Of the items together, launched as `reproduce` does: item by item, no run twice."""
    rehearsal = Rehearsal(estimator)
    source = EmulatedSource(rehearsal, num_workers, steps)
    done: set[Run] = set()
    for item in items:
        source.measure([run for run in item.runs if run not in done])
        done |= set(item.runs)
    return rehearsal.total
