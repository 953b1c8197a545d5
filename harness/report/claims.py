"""The paper's claims with the newest verdict of each kind of evidence, as `nestpipe claims run` left them."""

from __future__ import annotations

from harness.claims.claim import load
from harness.claims.report import COLUMNS, lines_of, numbered, summary
from harness.claims.rows import latest
from harness.claims.rules import FAILS
from harness.report.page import Section, Table
from harness.report.sources import Results

_WORDS = frozenset({"claim", "evidence", "verdict", "command"})


def section(results: Results) -> Section | None:
    """Every claim that was put to the test; None where none was."""
    rows = latest(results.claim_folders)
    lines = lines_of(load(), rows) if rows else []
    kept = [line for line in lines if line.row is not None]
    if not kept:
        return None
    cells, notes = numbered(kept)
    if len(kept) < len(lines):
        notes.append(f"{len(lines) - len(kept)} more can be had: `nestpipe claims list`")
    table = Table(
        "Claims by kind of evidence, the newest verdict of each",
        COLUMNS,
        tuple(cells),
        (*notes, *summary(kept)),
        words=_WORDS,
        failed=frozenset(index for index, line in enumerate(kept) if line.verdict == FAILS),
    )
    intro = (
        "Each kind of evidence decides for itself; where none can, the closest evidence is shown and decides "
        "nothing."
    )
    return Section("claims", "The paper's claims", intro, (table,))
