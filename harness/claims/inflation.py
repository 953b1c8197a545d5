"""The claim about clustering: how often clustered micro-batches ask for the same row, on generated data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.claims.experiments import Found, Place

PRESET = "one-interest"
NUM_SAMPLES = 512
NUM_BATCHES = 10


class Inflation:
    """One row, the engine's own clustering; columns are sizes of micro-batches."""

    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir

    def measure(self, places: Sequence[Place]) -> Found:
        """The mean inflation over some batches, by `16:inflation` for micro-batches of 16."""
        from harness.catalog import create_workload
        from harness.clustering.comparison import compare
        from harness.clustering.contestants import ENGINE

        settings = {"preset": PRESET, "batch_size": str(NUM_SAMPLES)}
        workload = create_workload("industrial", settings, 0, 1, self._cache_dir)
        sizes = {int(column.partition(":")[0]): (row, column) for row, column in places}
        outcomes = compare("industrial", workload, num_batches=NUM_BATCHES, micro_batches=list(sizes))
        values = {
            sizes[each.micro_batch]: each.inflation.mean for each in outcomes if each.algorithm == ENGINE
        }
        return Found(values, {**settings, "workload": "industrial", "num_batches": NUM_BATCHES})
