"""The loop of a sweep: what is missing is measured, cell by cell, and kept before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from statistics import fmean
from time import perf_counter

from harness.durations import duration
from harness.sweep.journal import FAILED, MEASURED, SCHEMA, CellRow, Journal, Measurement, Provenance
from harness.sweep.plan import Cell, Step, Sweep

Measure = Callable[[Cell], Measurement]
"""Measures a cell; any exception is a failure of that cell alone."""
Say = Callable[[str], None]


class TimeLeft:
    """Estimates what is left of a sweep from the cells that are done, of this start or an earlier one."""

    def __init__(self, sweep: Sweep, journal: Journal, expected_s: Callable[[Cell], float | None]) -> None:
        """`expected_s` is what a cell is expected to take before any was measured; None: nothing is known."""
        self._cells = {cell.identity: cell for _, cell in sweep.cells()}
        self._journal = journal
        self._expected_s = expected_s

    def seconds(self, cells: Sequence[Cell]) -> float | None:
        """Of those cells together; None where nothing is known of one."""
        took: dict[Cell, list[float]] = {}
        for row in self._journal.rows():
            if row.status == MEASURED and row.cell in self._cells:
                took.setdefault(_any_round(self._cells[row.cell]), []).append(row.seconds)
        usual = fmean(s for each in took.values() for s in each) if took else None
        expected = [self._of(cell, took.get(_any_round(cell), []), usual) for cell in cells]
        known = [seconds for seconds in expected if seconds is not None]
        return sum(known) if len(known) == len(cells) else None

    def _of(self, cell: Cell, own: Sequence[float], usual: float | None) -> float | None:
        if own:
            return fmean(own)
        expected = self._expected_s(cell)
        return usual if expected is None else expected


def _any_round(cell: Cell) -> Cell:
    return replace(cell, round=0)


def missing(sweep: Sweep, journal: Journal) -> list[tuple[Step, Cell]]:
    """The cells that have yet to be measured, in order."""
    return [(step, cell) for step, cell in sweep.cells() if cell not in journal]


def run_missing(
    sweep: Sweep, journal: Journal, measure: Measure, provenance: Provenance, left: TimeLeft, say: Say
) -> None:
    """Measure every cell that the journal lacks; `say` is told of each as it begins and ends.

    A cell that fails is kept with its error, and the sweep goes on.
    """
    pending = missing(sweep, journal)
    total = sweep.num_rounds * len(sweep.steps) * len(sweep.workers)
    for index, (step, cell) in enumerate(pending):
        place = f"[{total - len(pending) + index + 1}/{total}]"
        say(f"{place} {_described(step, cell, sweep)}{_remaining(left, [c for _, c in pending[index:]])}")
        row = _row(cell, measure, provenance)
        journal.append(row)
        say(f"{place} {_outcome(row)}")


def _row(cell: Cell, measure: Measure, provenance: Provenance) -> CellRow:
    began = perf_counter()
    measurement, error = None, ""
    try:
        measurement = measure(cell)
    except Exception as failure:
        trace = getattr(failure, "traceback", "")  # of the worker, where that says more than the message
        error = f"{trace}\n{type(failure).__name__}: {failure}".strip()
    return CellRow(
        schema=SCHEMA,
        cell=cell.identity,
        settings=asdict(cell),
        status=FAILED if measurement is None else MEASURED,
        error=error,
        measurement=measurement,
        seconds=perf_counter() - began,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        provenance=provenance,
    )


def _described(step: Step, cell: Cell, sweep: Sweep) -> str:
    workers = f"{cell.workers} worker{'s' if cell.workers > 1 else ''}"
    return f"{step.name}, {workers}, round {cell.round + 1} of {sweep.num_rounds}"


def _remaining(left: TimeLeft, cells: Sequence[Cell]) -> str:
    seconds = left.seconds(cells)
    return "" if seconds is None else f"; about {duration(seconds)} left"


def _outcome(row: CellRow) -> str:
    if row.measurement is None:
        return f"failed after {duration(row.seconds)}: {row.error.strip().splitlines()[-1]}"
    return f"{row.measurement.step_ms_p50:.2f} ms a step, in {duration(row.seconds)}"
