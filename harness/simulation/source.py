"""The simulator as a source of evidence: the profiles of the emulated cluster, without the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.emulation import profiles
from harness.options import METHOD_KEYS
from harness.reproduce.measured import Measured, Measurements, Run
from harness.simulation.costs import Conditions
from harness.simulation.methods import find
from harness.simulation.paper import model_of
from harness.simulation.predict import NUM_MEASURED_STEPS, Prediction, predict


@dataclass(frozen=True)
class SimulatedSource:
    """Schedules under the profiles' costs.

    There is no data, so nothing is known of keys: cutting and clustering a batch do not change its bytes.
    """

    num_steps: int = NUM_MEASURED_STEPS
    evidence: str = "simulated"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Simulated steps."""
        return {"steps": self.num_steps}

    def measure(self, runs: Sequence[Run]) -> Measurements:
        """A simulation of each run."""
        return {run: _measured(self._predict(run)) for run in runs}

    def _predict(self, run: Run) -> Prediction:
        profile = profiles.get(run.profile, dict(run.profile_overrides))
        settings = dict(run.settings)
        cuts = settings.get("micro_batches")
        method = find(run.method, METHOD_KEYS["micro_batches"]("micro_batches", cuts) if cuts else None)
        conditions = Conditions(profile.num_workers)
        return predict(method, model_of(profile), conditions, self.num_steps, profile.group_share)


def _measured(step: Prediction) -> Measured:
    return Measured(
        step_ms=step.step_ms,
        lookup_ms=step.lookup_ms,
        comm_ms=step.comm_ms,
        dense_ms=step.dense_ms,
        other_ms=0.0,
        total_comm_ms=step.total_comm_ms,
        modelled_step_ms=step.step_ms,
        modelled_dense_ms=step.modelled_dense_ms,
        real_overhead_ms=0.0,
        step_samples_ms=step.samples_ms,
    )
