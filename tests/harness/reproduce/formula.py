"""Measurements made up from one formula: step = dense + exposed lookup + exposed communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.emulation import profiles
from harness.emulation.profiles import Profile
from harness.reproduce.measured import Measured, Run

OVERHEAD_MS = 4.0
NUM_STEPS = 12
_HIDES_LOOKUP = ("uniemb", "dbp", "nestpipe", "nestpipe-chosen", "nestpipe-2d")
_SPLITS = ("fwp", "nestpipe", "nestpipe-chosen", "nestpipe-2d")


def measured(run: Run, *, overhead_ms: float = OVERHEAD_MS) -> Measured:
    """What the formula says of a run; every microbatch but the first and last hides its transfers."""
    profile = profiles.get(run.profile, dict(run.profile_overrides))
    settings = dict(run.settings)
    num_micro_batches = int(settings.get("micro_batches", "8")) if run.method in _SPLITS else 1
    lookup_ms = profile.residual_lookup_ms if run.method in _HIDES_LOOKUP else profile.lookup_ms
    total_ms = _total_comm_ms(run.method, profile)
    if "clustering" in settings:
        total_ms *= 1 + num_micro_batches / 320
    comm_ms = total_ms / num_micro_batches
    modelled_ms = profile.dense_ms + lookup_ms + comm_ms
    step_ms = modelled_ms + overhead_ms
    return Measured(
        step_ms=step_ms,
        lookup_ms=lookup_ms,
        comm_ms=comm_ms,
        dense_ms=profile.dense_ms,
        other_ms=overhead_ms,
        total_comm_ms=total_ms,
        modelled_step_ms=modelled_ms,
        modelled_dense_ms=profile.dense_ms,
        real_overhead_ms=overhead_ms,
        step_samples_ms=(step_ms,) * NUM_STEPS,
    )


def _total_comm_ms(method: str, profile: Profile) -> float:
    if method in ("2d-sp", "nestpipe-2d"):
        return profile.group_comm_ms
    return profile.comm_ms * (1.4 if method == "torchrec-nodedup" else 1.0)


@dataclass
class FormulaSource:
    """A source that keeps what it was asked for."""

    evidence: str = "emulated"
    overhead_ms: float = OVERHEAD_MS
    settings: Mapping[str, int] = field(default_factory=lambda: {"num_workers": 2, "steps": NUM_STEPS})
    asked: list[Run] = field(default_factory=list)

    def measure(self, runs: Sequence[Run]) -> dict[Run, Measured]:
        self.asked += runs
        return {run: measured(run, overhead_ms=self.overhead_ms) for run in runs}
