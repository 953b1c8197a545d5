"""Claims about schedules that hold for any durations: what the verifier says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.claims.experiments import Found, Place
from harness.schedule_file import load_schedule
from nestpipe.verify import Proof, verify

_QUANTITIES: Mapping[str, Callable[[Proof], int]] = {
    "staleness_steps": lambda proof: proof.worst_staleness,
    "buffer_hazards": lambda proof: len(proof.buffer_hazards),
    "collective_order": lambda proof: len(proof.collective_order),
}


class Proofs:
    """Rows are schedules, columns what is proved of them."""

    def measure(self, places: Sequence[Place]) -> Found:
        """Prove each schedule once."""
        proofs = {row: verify(load_schedule(row)) for row, _ in places}
        values = {(row, column): float(_QUANTITIES[column](proofs[row])) for row, column in places}
        return Found(values, {})
