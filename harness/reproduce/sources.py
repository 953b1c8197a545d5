"""Sources of evidence by name; what measures is imported when one is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.emulation import profiles
from harness.options import nearest
from harness.reproduce.measured import Measured, Measurements, Run, Source

EVIDENCE = ("emulated", "simulated")


class RunEmulated(Protocol):
    """One launch: the methods in turns on every profile, keyed by method and emulated workers."""

    def __call__(
        self,
        methods: Sequence[str],
        profile_names: Sequence[str],
        num_workers: int,
        steps: int,
        *,
        profile_overrides: Mapping[str, float],
        settings: Mapping[str, str],
    ) -> Mapping[tuple[str, int], Measured]: ...


@dataclass(frozen=True)
class EmulatedSource:
    """Real processes with modelled durations; one launch a method and set of overrides."""

    run_emulated: RunEmulated
    num_workers: int
    """Real processes."""
    steps: int
    """Measured steps of each run."""
    evidence: str = "emulated"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Real workers and steps."""
        return {"num_workers": self.num_workers, "steps": self.steps}

    def measure(self, runs: Sequence[Run]) -> Measurements:
        """A measurement of each run; runs that differ in the profile's name alone share a launch."""
        launches: dict[Run, list[Run]] = {}
        for run in runs:
            alike = Run(run.method, "", run.profile_overrides, run.settings)
            launches.setdefault(alike, []).append(run)
        measured: dict[Run, Measured] = {}
        for alike, members in launches.items():
            measured |= self._launch(alike, members)
        return measured

    def _launch(self, alike: Run, members: Sequence[Run]) -> Measurements:
        sizes = [profiles.get(run.profile).num_workers for run in members]
        assert len(set(sizes)) == len(sizes), f"two profiles of one size: {[run.profile for run in members]}"
        found = self.run_emulated(
            [alike.method],
            [run.profile for run in members],
            self.num_workers,
            self.steps,
            profile_overrides=dict(alike.profile_overrides),
            settings=dict(alike.settings),
        )
        return {run: found[run.method, size] for run, size in zip(members, sizes, strict=True)}


def open_source(evidence: str, *, num_workers: int, steps: int) -> Source:
    """The source of that evidence; ValueError with the nearest name for an unknown one."""
    if evidence not in EVIDENCE:
        raise ValueError(f"unknown evidence {evidence!r}: {nearest(evidence, EVIDENCE)}")
    if evidence == "simulated":
        from harness.simulation.source import SimulatedSource

        return SimulatedSource()
    from harness.emulation.experiment import run_emulated

    return EmulatedSource(run_emulated, num_workers, steps)
