"""What lies in the folders of a report: invocations by kind, their raw steps, and traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from harness.claims.rows import ROWS_FILE as CLAIMS_FILE
from harness.op_trace import TracedOp, read_trace
from harness.options import Training
from harness.report.lines import objects, read_rows
from harness.reproduce.rows import ROWS_FILE as REPRODUCE_FILE
from harness.reproduce.rows import ReproducedRow
from harness.results import RESULTS_FILE, Row
from harness.sweep.journal import CELLS_FILE
from harness.sweep.ladder import LADDER_FILE
from harness.training.rows import ROWS_FILE as TRAIN_FILE
from harness.training.rows import TrainingRow

RUN, REPRODUCE, TRAIN = "run", "reproduce", "train"
_DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(Training)}


@dataclass(frozen=True)
class Invocation:
    """One command that left results: what its rows share, and the rows."""

    kind: str
    """The command: run, reproduce or train."""
    path: Path
    """The file of its rows."""
    rows: tuple[Mapping[str, Any], ...]

    def __getitem__(self, name: str) -> Any:
        """A field that all rows share, such as the commit."""
        return self.rows[0][name]

    @property
    def run_id(self) -> str:
        """Its id, which sorts by time."""
        return str(self["run_id"])

    @property
    def commit(self) -> str:
        """The commit's first digits; a plus where the checkout had changes."""
        return (self["commit"][:7] or "unknown") + ("+" if self["dirty"] else "")

    @property
    def origin(self) -> str:
        """Kind of evidence, day and commit: what a figure carries."""
        return f"{self['evidence']}, {self['time'][:10]}, {self.commit}"

    @property
    def about(self) -> str:
        """What was run, in a few words."""
        if self.kind == REPRODUCE:
            return ", ".join(dict.fromkeys(row["item"] for row in self.rows))
        where = "" if self["cluster"] == "local" else f" on {self['cluster']}"
        return f"{self['workload']}{where}"

    @property
    def changed_settings(self) -> str:
        """Settings that differ from the defaults, in a line."""
        changed = {key: value for key, value in self["settings"].items() if _DEFAULTS.get(key, "") != value}
        return ", ".join(f"{key}={value}" for key, value in changed.items()) or "none changed"

    def steps(self, *names: str) -> list[dict[str, Any]]:
        """The raw steps beside the rows, with at least these fields; none where that file is gone."""
        path = self.path.parent / f"steps-{self.run_id}.jsonl"
        if not path.is_file():
            return []
        found = list(objects(path))
        for where, entry in found:
            missing = [name for name in names if name not in entry]
            if missing:
                raise ValueError(f"{where}: field {missing[0]!r} is missing; remove {path.name} to go on")
        return [entry for _, entry in found]


@dataclass(frozen=True)
class Results:
    """Everything that a report is made of."""

    invocations: tuple[Invocation, ...]
    """The earliest first."""
    traces: Mapping[Path, Sequence[TracedOp]]
    ladders: tuple[Path, ...] = ()
    """Documents of sweeps."""
    claim_folders: tuple[Path, ...] = ()
    """Folders with verdicts on the paper's claims."""

    def of(self, kind: str) -> list[Invocation]:
        """The invocations of one command, the earliest first."""
        return [each for each in self.invocations if each.kind == kind]


_FILES: Mapping[str, tuple[str, type, tuple[str, ...]]] = {
    RESULTS_FILE: (RUN, Row, ("method", "workers", "metric")),
    REPRODUCE_FILE: (REPRODUCE, ReproducedRow, ("item", "row", "column")),
    TRAIN_FILE: (TRAIN, TrainingRow, ("seed", "method", "workers", "epoch", "metric")),
}
"""By name of the file: what wrote it, its rows, and what tells the rows of one invocation apart."""
_NO_TRACES = {*_FILES, CLAIMS_FILE, CELLS_FILE}
_STEPS_FILE = re.compile(r"steps-\d{8}T\d{6}Z-[0-9a-f]{6}\.jsonl")
_TRACE_FIELDS = {"lane", "kind", "issued_ms", "finished_ms"}
_ORDER = [field.name for field in fields(TracedOp)]
NUM_LINES_TO_TELL = 20
"""Of a file of any name, in which a trace is told by any line: one may be damaged."""


def find_results(folders: Sequence[Path]) -> Results:
    """Read everything below the folders.

    ValueError where there is nothing, where a file is damaged or newer, and where two runs have one id.
    """
    paths = _files(folders, "*.jsonl")
    invocations = [each for path in paths if path.name in _FILES for each in _invocations(path)]
    _refuse_equal_ids(invocations)
    traces = {path: _trace(path) for path in paths if _is_trace(path)}
    results = Results(
        tuple(sorted(invocations, key=lambda each: each.run_id)),
        traces,
        ladders=tuple(_files(folders, LADDER_FILE)),
        claim_folders=tuple(path.parent for path in paths if path.name == CLAIMS_FILE),
    )
    if not any(vars(results).values()):
        names = ", ".join((*_FILES, LADDER_FILE, CLAIMS_FILE))
        raise ValueError(
            f"no results in {', '.join(map(str, folders))}: looked for {names} and traces; "
            "`nestpipe run METHOD... --out FOLDER` makes some"
        )
    return results


def _files(folders: Sequence[Path], pattern: str) -> list[Path]:
    """The files below the folders, each once, in a fixed order."""
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"no folder {folder}; give its path from {Path.cwd()}")
    found = (path for folder in folders for path in folder.rglob(pattern) if path.is_file())
    return sorted({path.resolve(): path for path in found}.values())


def _invocations(path: Path) -> list[Invocation]:
    kind, row, identity = _FILES[path.name]
    by_id: dict[str, list[dict[str, Any]]] = {}
    for entry in read_rows(path, row):
        by_id.setdefault(entry["run_id"], []).append(entry)
    found = [Invocation(kind, path, tuple(entries)) for entries in by_id.values()]
    for each in found:
        starts = {(entry["time"], entry["commit"]) for entry in each.rows}
        places = {tuple(entry[name] for name in identity) for entry in each.rows}
        if len(starts) > 1 or len(places) < len(each.rows):
            raise ValueError(
                f"{path}: two runs have the id {each.run_id}; remove the lines of one of them to go on"
            )
    return found


def _refuse_equal_ids(invocations: Iterable[Invocation]) -> None:
    seen: dict[str, Path] = {}
    for each in invocations:
        if each.run_id in seen:
            raise ValueError(
                f"two runs have the id {each.run_id}: in {seen[each.run_id]} and in {each.path}; leave out "
                "one of the folders"
            )
        seen[each.run_id] = each.path


def _is_trace(path: Path) -> bool:
    """Whether lines of it are, or were before they were damaged, ops as `write_trace` writes them."""
    if path.name in _NO_TRACES or _STEPS_FILE.fullmatch(path.name):
        return False
    with path.open("rb") as file:
        return any(map(_is_op, islice(file, NUM_LINES_TO_TELL)))


def _is_op(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:  # cut short, or bytes that are no text: then what is left of its fields tells
        names = re.findall(r'"(\w+)":', line.decode(errors="replace"))
        return bool(names) and (names == _ORDER[: len(names)] or set(names) >= _TRACE_FIELDS)
    return isinstance(entry, dict) and set(entry) >= _TRACE_FIELDS


def _trace(path: Path) -> list[TracedOp]:
    try:
        return read_trace(path)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: damaged, not text throughout; remove the file to go on") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}, or update this version if a newer one wrote it") from None
