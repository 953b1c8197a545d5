"""Claims about step times: the runs that they need out of an item of `nestpipe reproduce`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.claims.experiments import Found, Place
from harness.emulation.profiles import PAPER_DENSE_MS
from harness.paper import Paper
from harness.reproduce import items
from harness.reproduce.cells import Cell, make_cells
from harness.reproduce.items import Item, Line
from harness.reproduce.measured import Measured, Run, Source
from harness.reproduce.metrics import METRICS, unit_of

_NEEDS_BASE = {"speedup", "saved_ms", "lookup_removed", "comm_left"}
_NEEDS_SMALLEST = {"efficiency"}
GPU = "table2-gpu"
GPU_DENSE_MS = 4207.94 - 856.63 - 312.19
"""Of TorchRec's step on the GPU cluster, what neither lookup nor communication explains."""


@dataclass(frozen=True)
class Timed:
    """A run that was measured, and its share of what measuring took."""

    measured: Measured
    seconds: float


@dataclass(frozen=True)
class Reproduced:
    """One item, measured as far as claims ask for it."""

    name: str
    source: Source
    memory: dict[Run, Timed]
    """What was measured before; filled."""

    def measure(self, places: Sequence[Place]) -> Found:
        """The cells at these places; the seconds are those of the runs they need, whenever they ran."""
        item = narrowed(item_of(self.name), places)
        missing = [run for run in item.runs if run not in self.memory]
        start = time.perf_counter()
        measured = self.source.measure(missing) if missing else {}
        share = (time.perf_counter() - start) / max(len(missing), 1)
        self.memory.update({run: Timed(measured[run], share) for run in missing})
        known = {run: self.memory[run].measured for run in item.runs}
        # Claims know their figures of the paper themselves.
        cells = make_cells(item, known, Paper(item.name, item.title, "", (), {}), self.source.evidence)
        return Found(
            {(cell.row, cell.column): _value(self.name, cell) for cell in cells},
            self.source.settings,
            sum(self.memory[run].seconds for run in item.runs),
        )


def item_of(name: str) -> Item:
    """The item of an experiment's name, the ablation and the GPU cluster among them."""
    if name == "ablation":
        return items.ablation()
    if name == GPU:
        return _gpu()
    [item] = items.get(name)
    return item


def _gpu() -> Item:
    run = {method: Run(method, "paper-gpu-128") for method in items.METHODS}
    base = run[items.BASE]
    metrics = ("step_ms", "speedup", "lookup_ms", "comm_ms")
    lines = tuple(Line(method, "", own, base, own, own, metrics) for method, own in run.items())
    return Item(GPU, "Step latency, 128 GPUs", lines)


def narrowed(item: Item, places: Sequence[Place]) -> Item:
    """The item with only the cells at `places`, and so with only the runs that these need.

    A place may ask for a metric that the item does not show, where that is of one run alone.
    """
    left = dict.fromkeys(places)
    lines = tuple(line for whole in item.lines for line in _narrowed(whole, left))
    if left:
        row, column = next(iter(left))
        raise ValueError(f"experiment {item.name!r} has no figure at row {row!r}, column {column!r}")
    return replace(item, lines=lines)


def _narrowed(line: Line, left: dict[Place, None]) -> Iterator[Line]:
    """The line with what is left to be found of it, which is taken out of `left`."""
    metrics = []
    for row, column in list(left):
        group, _, metric = column.rpartition(":")
        is_had = metric in line.metrics or metric in METRICS.keys() - _NEEDS_BASE - _NEEDS_SMALLEST
        if (row, group) == (line.row, line.group) and is_had:
            metrics.append(metric)
            del left[row, column]
    if metrics:
        yield replace(
            line,
            metrics=tuple(metrics),
            base=line.base if _NEEDS_BASE & set(metrics) else line.run,
            smallest=line.smallest if _NEEDS_SMALLEST & set(metrics) else line.run,
        )


def _value(item: str, cell: Cell) -> float | None:
    if cell.ours is None or not math.isfinite(cell.ours):
        return None
    # Cells are in milliseconds of the NPU cluster.
    is_scaled = item == GPU and unit_of(cell.metric) == "ms"
    return cell.ours * (GPU_DENSE_MS / PAPER_DENSE_MS if is_scaled else 1.0)
