"""What a reproduction leaves on disk: a long-form row a cell, and the raw steps that it came from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.machine import commit, fingerprint, versions
from harness.reproduce.cells import Cell
from harness.reproduce.measured import Measurements, Source
from harness.reproduce.metrics import unit_of
from harness.results import append

ROWS_FILE = "reproduce.jsonl"


@dataclass(frozen=True)
class Reproduction:
    """What all rows of one invocation share."""

    run_id: str
    time: str
    evidence: str
    settings: Mapping[str, Any]
    commit: str
    dirty: bool
    versions: Mapping[str, str]
    machine: Mapping[str, Any]

    @property
    def date(self) -> str:
        """The day, as titles of figures carry it."""
        return self.time.partition("T")[0]


@dataclass(frozen=True)
class ReproducedRow(Reproduction):
    """One cell."""

    item: str
    row: str
    column: str
    metric: str
    unit: str
    paper: float | None
    bound: str
    """">" or "<" where `paper` is a stated bound, else ""."""
    mark: str | None
    ours: float | None
    ours_modelled: float | None
    relative_error: float | None
    held_out: bool


def new_reproduction(source: Source) -> Reproduction:
    """The reproduction that is about to start, with a new id that sorts by time."""
    now = datetime.now(UTC)
    head, dirty = commit()
    return Reproduction(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}",
        time=now.isoformat(timespec="seconds"),
        evidence=source.evidence,
        settings=dict(source.settings),
        commit=head,
        dirty=dirty,
        versions=versions(),
        machine=asdict(fingerprint()),
    )


def rows(reproduction: Reproduction, cells: Sequence[Cell]) -> Iterator[ReproducedRow]:
    """A row a cell."""
    for cell in cells:
        values = cell.as_json()
        del values["evidence"]
        yield ReproducedRow(
            **vars(reproduction),
            **values,
            metric=cell.metric,
            unit=unit_of(cell.metric),
            bound="" if cell.reference is None else cell.reference.bound,
        )


def save(
    folder: Path, reproduction: Reproduction, cells: Sequence[Cell], measurements: Measurements
) -> tuple[Path, Path]:
    """Append the cells to `reproduce.jsonl` and write the raw steps to `steps-<run id>.jsonl`."""
    results, steps = folder / ROWS_FILE, folder / f"steps-{reproduction.run_id}.jsonl"
    append(steps, ({**asdict(run), **asdict(measured)} for run, measured in measurements.items()))
    append(results, (asdict(row) for row in rows(reproduction, cells)))
    return results, steps
