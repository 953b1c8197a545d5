"""Verdicts on what other commands have measured already: rows of `nestpipe reproduce` in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.claims import accuracy
from harness.claims.claim import Catalogue, Wanted
from harness.claims.rows import ClaimRow, make_row
from harness.report.lines import read_rows
from harness.reproduce.rows import ROWS_FILE, ReproducedRow, Reproduction


def rows_from(folder: Path, catalogue: Catalogue, wanted: Sequence[Wanted]) -> list[ClaimRow]:
    """A row a claim that the folder has a figure for, with the run, commit and machine that it came from.

    ValueError where it has none, and for a file that is damaged or newer.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; give the --out folder of `nestpipe reproduce`")
    rows = [*_step_times(folder, catalogue, wanted), *_accuracy(folder, catalogue, wanted)]
    if not rows:
        raise ValueError(
            f"{folder}: neither {ROWS_FILE} nor {accuracy.DOCUMENT} with a figure that is asked for; "
            "run `nestpipe reproduce all` first, or leave --from out"
        )
    return rows


def _step_times(folder: Path, catalogue: Catalogue, wanted: Sequence[Wanted]) -> Iterator[ClaimRow]:
    path = folder / ROWS_FILE
    if not path.is_file():
        return
    newest: dict[tuple[str, str, str, str], Mapping[str, Any]] = {}
    for row in read_rows(path, ReproducedRow):
        newest[row["item"], row["evidence"], row["row"], row["column"]] = row
    for each in wanted:
        claim = each.claim
        found = newest.get((claim.experiment, each.evidence, claim.row, claim.column))
        if found is not None:
            yield make_row(_header(found), catalogue, each, found["ours"], settings=found["settings"])


def _accuracy(folder: Path, catalogue: Catalogue, wanted: Sequence[Wanted]) -> Iterator[ClaimRow]:
    path = folder / accuracy.DOCUMENT
    mine = [each for each in wanted if each.claim.experiment == "fig6"]
    if not path.is_file() or not mine:
        return
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        values = accuracy.values_of(document, [(each.claim.row, each.claim.column) for each in mine])
        header, settings = _header(document), accuracy.settings_of(document)
    except (ValueError, KeyError, TypeError, StopIteration):
        raise ValueError(
            f"{path}: not what `nestpipe reproduce fig6` writes here; run it again, or move the file away"
        ) from None
    for each in mine:
        ours = values[each.claim.row, each.claim.column]
        yield make_row(header, catalogue, each, ours, settings=settings)


def _header(entry: Mapping[str, Any]) -> Reproduction:
    return Reproduction(**{field.name: entry[field.name] for field in fields(Reproduction)})
