"""From the cells of a sweep to what each step brought over the one it builds on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from harness.summary import FAILED as INEXACT
from harness.sweep.journal import SCHEMA, CellRow, Journal, Measurement
from harness.sweep.plan import Step, Sweep

LADDER_FILE = "ladder.json"
MIN_GAIN = 0.02
"""A smaller change is flat, even where all rounds agree on it."""
FASTER, SLOWER, FLAT = "faster", "slower", "flat"


@dataclass(frozen=True)
class Spread:
    """The median over rounds, and the lowest and highest of them."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Rung:
    """A step on so many workers."""

    step: str
    change: str
    base: str | None
    workers: int
    rounds: int
    """That were measured."""
    step_ms: Spread | None
    qps: Spread | None
    gain: Spread | None
    """Throughput over that of `base` in the same round, so that drift from round to round cancels.

    None for the first step, and where either failed or is not as exact as promised.
    """
    total_gain: Spread | None
    """The same over the first step."""
    verdict: str
    """"first", "faster", "slower", "flat", "one round", "no base", "not exact",
    "failed", "partly failed" or "missing"."""
    exactness: str
    parts_ms: Mapping[str, float]
    """Exposed lookup and comm, dense and other: medians over rounds."""
    error: str

    def as_json(self) -> dict[str, Any]:
        """The documented form."""
        return asdict(self)


def ladder(sweep: Sweep, journal: Journal) -> list[Rung]:
    """A rung a step and worker count, in the order of the file."""
    found = {
        (step.name, workers): [journal.get(sweep.cell(step, workers, n)) for n in range(sweep.num_rounds)]
        for step in sweep.steps
        for workers in sweep.workers
    }
    first = sweep.steps[0].name
    return [
        _rung(
            step,
            workers,
            found[step.name, workers],
            found.get((step.base or "", workers)),
            found[first, workers],
        )
        for workers in sweep.workers
        for step in sweep.steps
    ]


Rounds = Sequence[CellRow | None]


def _rung(step: Step, workers: int, own: Rounds, base: Rounds | None, first: Rounds) -> Rung:
    measured = [row.measurement for row in own if row is not None and row.measurement is not None]
    errors = [row.error for row in own if row is not None and row.error]
    gain = None if base is None else _gain(own, base)
    return Rung(
        step=step.name,
        change=step.change,
        base=step.base,
        workers=workers,
        rounds=len(measured),
        step_ms=_spread([each.step_ms_p50 for each in measured]),
        qps=_spread([each.qps for each in measured]),
        gain=None if gain is None else _spread(gain),
        total_gain=None if base is None else _spread(_gain(own, first)),
        verdict=_verdict(own, gain, measured, errors),
        exactness=_exactness(measured),
        parts_ms=_parts(measured),
        error=errors[-1] if errors else "",
    )


def _gain(own: Rounds, base: Rounds) -> list[float]:
    """Ratios of throughput, one a round in which both were measured; none where one is not exact."""
    pairs = [
        (mine.measurement, other.measurement)
        for mine, other in zip(own, base, strict=True)
        if mine is not None and other is not None
    ]
    whole = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
    if any(INEXACT in (mine.exactness, other.exactness) for mine, other in whole):
        return []
    return [mine.qps / other.qps for mine, other in whole]


def _verdict(
    own: Rounds, gain: list[float] | None, measured: Sequence[Measurement], errors: Sequence[str]
) -> str:
    if errors:
        return "partly failed" if measured else "failed"
    if None in own:
        return "missing"
    if any(each.exactness == INEXACT for each in measured):
        return "not exact"
    if gain is None:
        return "first"
    if not gain:
        return "no base"
    if len(gain) == 1:
        return "one round"
    if min(gain) > 1 and median(gain) >= 1 + MIN_GAIN:
        return FASTER
    if max(gain) < 1 and median(gain) <= 1 / (1 + MIN_GAIN):
        return SLOWER
    return FLAT


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(median(values), min(values), max(values)) if values else None


def _exactness(measured: Sequence[Measurement]) -> str:
    kinds = list(dict.fromkeys(each.exactness for each in measured))
    return INEXACT if INEXACT in kinds else ", ".join(kinds)


def _parts(measured: Sequence[Measurement]) -> dict[str, float]:
    if not measured:
        return {}
    names = ("lookup_ms", "comm_ms", "dense_ms", "other_ms")
    return {name: median(getattr(each, name) for each in measured) for name in names}


def doubts(sweep: Sweep, journal: Journal, rungs: Sequence[Rung]) -> list[str]:
    """What a reader must know of how the rows came about."""
    own = {cell.identity for _, cell in sweep.cells()}
    rows = [row for row in journal.rows() if row.cell in own]
    remarks = []
    for what, values in (
        ("commits", {row.provenance.commit[:7] + ("+" if row.provenance.dirty else "") for row in rows}),
        ("machines", {repr(sorted(row.provenance.machine.items())) for row in rows}),
        ("sets of versions", {repr(sorted(row.provenance.versions.items())) for row in rows}),
    ):
        if len(values) > 1:
            shown = f" ({', '.join(sorted(values))})" if what == "commits" else ""
            remarks.append(f"cells of {len(values)} {what}{shown}: gains mix them; --force measures all anew")
    others = len(journal.rows()) - len(rows)
    if others:
        remarks.append(f"{others} cells in {journal.path} are of no step of this sweep and not shown")
    notes = (note for row in rows if row.measurement is not None for note in row.measurement.notes)
    remarks += dict.fromkeys(notes)
    remarks += [f"{rung.step} at {rung.workers} workers: {rung.error}" for rung in rungs if rung.error]
    return remarks


def as_document(sweep: Sweep, journal: Journal, rungs: Sequence[Rung], evidence: str) -> dict[str, Any]:
    """The whole ladder for machines."""
    own = {cell.identity for _, cell in sweep.cells()}
    rows = [row for row in journal.rows() if row.cell in own]
    return {
        "schema": SCHEMA,
        "kind": "sweep",
        "name": sweep.name,
        "evidence": evidence,
        "workers": list(sweep.workers),
        "steps": sweep.num_steps,
        "rounds": sweep.num_rounds,
        "seed": sweep.seed,
        "rungs": [rung.as_json() for rung in rungs],
        "cells": [
            {"cell": row.cell, "status": row.status, "seconds": row.seconds, "error": row.error}
            for row in rows
        ],
        "provenance": asdict(rows[-1].provenance) if rows else None,
    }
