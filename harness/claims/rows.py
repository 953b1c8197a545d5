"""What becomes of a claim, on disk: a long-form row a claim, kind of evidence and run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.claims.claim import Catalogue, Wanted
from harness.claims.rules import judge
from harness.machine import commit, fingerprint, versions
from harness.report.lines import objects, read_rows
from harness.reproduce.rows import Reproduction
from harness.results import append

ROWS_FILE = "claims.jsonl"
SCHEMA = 1


@dataclass(frozen=True)
class ClaimRow(Reproduction):
    """One claim with one kind of evidence."""

    schema: int
    claim: str
    experiment: str
    paper: str
    """As printed."""
    mark: str
    rule: str
    tolerance: float | None
    """None where the evidence decides nothing."""
    ours: float | None
    error: float | None
    verdict: str
    command: str
    seconds: float | None
    """What the experiment took, with all claims that were asked for; None where it ran elsewhere."""
    peak_memory_bytes: int | None
    """Of the largest process up to then, what estimated the run among them; None likewise."""


def new_header() -> Reproduction:
    """What the rows of an invocation share, with a new id that sorts by time."""
    now = datetime.now(UTC)
    head, dirty = commit()
    return Reproduction(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}",
        time=now.isoformat(timespec="seconds"),
        evidence="",
        settings={},
        commit=head,
        dirty=dirty,
        versions=versions(),
        machine=asdict(fingerprint()),
    )


def make_row(
    header: Reproduction,
    catalogue: Catalogue,
    wanted: Wanted,
    ours: float | None,
    *,
    settings: Mapping[str, Any],
    seconds: float | None = None,
    peak_memory_bytes: int | None = None,
) -> ClaimRow:
    """The row of one claim, with its verdict."""
    claim = wanted.claim
    judgement = judge(claim, wanted.evidence, ours)
    return ClaimRow(
        **vars(replace(header, evidence=wanted.evidence, settings=settings)),
        schema=SCHEMA,
        claim=claim.id,
        experiment=claim.experiment,
        paper=claim.paper.printed,
        mark=claim.paper.mark,
        rule=claim.rule,
        tolerance=claim.tests.get(wanted.evidence),
        ours=ours,
        error=judgement.error,
        verdict=judgement.verdict,
        command=catalogue.cost(wanted).command,
        seconds=seconds,
        peak_memory_bytes=peak_memory_bytes,
    )


def save(folder: Path, rows: Sequence[ClaimRow]) -> Path:
    """Append the rows to `claims.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    append(folder / ROWS_FILE, map(asdict, rows))
    return folder / ROWS_FILE


def save_new(folder: Path, rows: Sequence[ClaimRow]) -> Path:
    """As `save`, without those of a run that the file has already."""
    known = {(row.run_id, row.claim, row.evidence) for row in read(folder)}
    return save(folder, [row for row in rows if (row.run_id, row.claim, row.evidence) not in known])


def read(folder: Path) -> list[ClaimRow]:
    """All rows of a folder, none where it has no file of them.

    ValueError with file, line and the way out for a line that was cut short, of a newer version, or
    something else.
    """
    path = folder / ROWS_FILE
    if not path.is_file():
        return []
    for where, entry in objects(path):
        if isinstance(entry.get("schema"), int) and entry["schema"] > SCHEMA:
            raise ValueError(
                f"{where}: schema {entry['schema']} is newer than {SCHEMA}, the newest known here: update "
                "this checkout, or leave the folder out"
            )
    return [ClaimRow(**entry) for entry in read_rows(path, ClaimRow)]


def latest(folders: Sequence[Path], *, are_named: bool = False) -> dict[tuple[str, str], ClaimRow]:
    """The newest row of each claim and kind of evidence in any of the folders.

    ValueError as `read`, and for a folder without a row where the user has named them.
    """
    found: dict[tuple[str, str], ClaimRow] = {}
    for row in _all(folders, are_named):
        key = row.claim, row.evidence
        if key not in found or row.time >= found[key].time:
            found[key] = row
    return found


def _all(folders: Sequence[Path], are_named: bool) -> Iterator[ClaimRow]:
    for folder in folders:
        rows = read(folder)
        if are_named and not rows:
            raise ValueError(
                f"{folder}: no verdicts, which would be in its {ROWS_FILE}; name the --out folder of a "
                "`nestpipe claims run`"
            )
        yield from rows
