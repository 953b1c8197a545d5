"""The cells of a sweep on disk: a line each, written whole or not at all, one writer at a time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness.sweep.plan import Cell

CELLS_FILE = "cells.jsonl"
SCHEMA = 1
MEASURED, FAILED = "measured", "failed"


@dataclass(frozen=True)
class Measurement:
    """What a cell brought; times are those of its slowest worker, medians over its steps, in milliseconds."""

    batch_size: int
    step_ms_p10: float
    step_ms_p50: float
    step_ms_p90: float
    qps: float
    lookup_ms: float
    comm_ms: float
    dense_ms: float
    other_ms: float
    final_loss: float | None
    exactness: str
    """The class of exactness, "unchecked", or "FAILED"."""
    max_difference: float | None
    step_ms: tuple[float, ...]
    """Every measured step."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Provenance:
    """What a cell depends on besides its settings."""

    commit: str
    dirty: bool
    versions: Mapping[str, str]
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class CellRow:
    """A line of the file: a cell that was measured or failed."""

    schema: int
    cell: str
    """The cell's identity."""
    settings: Mapping[str, Any]
    """The cell's fields."""
    status: str
    error: str
    """Why it failed, "" where it did not."""
    measurement: Measurement | None
    seconds: float
    """It took in all."""
    time: str
    provenance: Provenance


class Journal:
    """The rows of a sweep by cell; `append` returns once a row is on disk."""

    def __init__(self, path: Path, rows: Iterable[CellRow] = ()) -> None:
        self.path = path
        self._rows = {row.cell: row for row in rows}

    def __contains__(self, cell: Cell) -> bool:
        return cell.identity in self._rows

    def get(self, cell: Cell) -> CellRow | None:
        """The cell's row; None where it has yet to be measured."""
        return self._rows.get(cell.identity)

    def rows(self) -> list[CellRow]:
        """All rows in the order of the file."""
        return list(self._rows.values())

    def append(self, row: CellRow) -> None:
        """Keep a row: one write of a whole line, then on disk."""
        assert row.cell not in self._rows
        line = json.dumps(asdict(row), allow_nan=False).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            # A disk that is full may take a part; the next start then drops it.
            if os.write(descriptor, line) < len(line):
                raise OSError(f"{self.path}: the disk took only a part of a line; make room and start again")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._rows[row.cell] = row


@contextmanager
def open_journal(folder: Path, *, force: bool = False, retry_failed: bool = False) -> Iterator[Journal]:
    """The folder's journal for a sweep that writes to it, without a last line that was cut short.

    `force` starts it anew, `retry_failed` leaves failed cells out. ValueError while another sweep has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CELLS_FILE
    with _locked(folder):
        if force:
            path.unlink(missing_ok=True)
        if path.exists():
            _drop_half_line(path)
            if retry_failed:
                _keep_measured(path)
        yield Journal(path, read_cells(path))


def read_cells(path: Path) -> list[CellRow]:
    """All whole rows of a sweep's file, none where it is not there yet.

    Without a last line that is being written or was cut short. ValueError with file, line and the way out
    for a damaged or newer line and for a cell that is there twice.
    """
    rows: dict[str, CellRow] = {}
    held = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(held.split(b"\n")[:-1], start=1):
        row = _parse(line, f"{path}:{number}")
        if row.cell in rows:
            raise ValueError(f"{path}:{number}: cell {row.cell} is there twice; remove one of its lines")
        rows[row.cell] = row
    return list(rows.values())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    # The system takes the lock back when the process ends, however it ends.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another sweep is writing to {folder}; wait for it, or use another --out"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _drop_half_line(path: Path) -> None:
    held = path.read_bytes()
    whole = held.rfind(b"\n") + 1
    if whole < len(held):
        os.truncate(path, whole)


def _keep_measured(path: Path) -> None:
    """Take failed cells out; what bears the final name is whole at any moment."""
    lines = path.read_bytes().splitlines(keepends=True)
    rows = read_cells(path)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.writelines(line for line, row in zip(lines, rows, strict=True) if row.status == MEASURED)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _parse(line: bytes, where: str) -> CellRow:
    try:
        entry = json.loads(line)
    except ValueError:  # bytes that are no text, too
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("schema"), int):
        raise ValueError(f"{where}: damaged, not a cell's line; remove it, and its cell is measured again")
    if entry["schema"] > SCHEMA:
        raise ValueError(
            f"{where}: schema {entry['schema']}, written by a newer version that this one (up to {SCHEMA}) "
            "cannot read; update it, or use another --out"
        )
    try:
        measured, provenance = entry.pop("measurement"), entry.pop("provenance")
        return CellRow(
            **entry,
            measurement=None if measured is None else _measurement(measured),
            provenance=Provenance(**provenance),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{where}: not a cell's line ({error}); remove it, and its cell is measured again"
        ) from None


def _measurement(entry: Mapping[str, Any]) -> Measurement:
    sequences = {field.name for field in fields(Measurement) if str(field.type).startswith("tuple")}
    values: dict[str, Any] = {
        name: tuple(value) if name in sequences else value for name, value in entry.items()
    }
    return Measurement(**values)
