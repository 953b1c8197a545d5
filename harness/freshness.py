"""What the freshness meters of all workers counted, beside what is proven of the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from nestpipe.schedule import Schedule
from nestpipe.verify import verify


@dataclass(frozen=True)
class Freshness:
    """How stale the rows were that a method read."""

    rows_by_staleness: tuple[int, ...]
    """Rows read that were 0, 1, 2, ... steps stale, up to the worst; all workers, steps and micro-batches."""
    proven: int | None
    """Steps that a read can be stale under the schedule at worst; None where nothing bounds it."""

    @property
    def max_staleness(self) -> int:
        """Of any row read, in steps."""
        return len(self.rows_by_staleness) - 1

    @property
    def note(self) -> str:
        """The counts in words."""
        counts = (f"{rows:,} {_late(steps)}" for steps, rows in enumerate(self.rows_by_staleness) if rows)
        bound = "proven: nothing" if self.proven is None else f"proven: at most {self.proven}"
        if self.proven is not None and self.max_staleness > self.proven:
            bound += ", so the proof or the engine is WRONG"
        return f"rows read: {', '.join(counts)} ({bound})"

    def as_json(self) -> dict[str, Any]:
        """The documented form of `--json`."""
        return {"max_staleness": self.max_staleness, "rows_by_staleness": list(self.rows_by_staleness)}


def add_up(counts: Sequence[tuple[int, ...] | None], schedule: Schedule | None) -> Freshness | None:
    """One method's counts of all workers; None where nothing was counted."""
    counted = [of_worker for of_worker in counts if of_worker is not None]
    if not counted or schedule is None:
        return None
    total = tuple(sum(rows) for rows in zip_longest(*counted, fillvalue=0))
    proof = verify(schedule)
    return Freshness(total, proof.worst_staleness if proof.is_bounded else None)


def _late(steps: int) -> str:
    return "current" if steps == 0 else f"stale by {steps}"
