"""Every claim with what became of it: as a table, as Markdown, and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.claims.claim import EVIDENCE, Catalogue, Claim, Cost, Wanted
from harness.claims.rows import ClaimRow
from harness.claims.rules import FAILS, HOLDS, NOT_RUN, NOT_TESTABLE, judge
from harness.reproduce.metrics import METRICS, unit_of
from harness.reproduce.tables import number

NOTHING = "-"
COLUMNS = ("claim", "paper", "evidence", "ours", "error", "allowed", "verdict", "took", "command")


@dataclass(frozen=True)
class Line:
    """One claim with one kind of evidence."""

    claim: Claim
    evidence: str
    cost: Cost
    row: ClaimRow | None
    """The newest; None where the evidence was not asked for yet."""

    @property
    def verdict(self) -> str:
        """By today's rule and tolerance, whatever they were when the row was kept."""
        if self.row is None:
            return NOT_RUN if self.evidence in self.claim.tests else NOT_TESTABLE
        return judge(self.claim, self.evidence, self.row.ours).verdict

    @property
    def error(self) -> float | None:
        """How far ours is from the paper's figure."""
        return None if self.row is None else judge(self.claim, self.evidence, self.row.ours).error

    def cells(self) -> tuple[str, ...]:
        """The texts of `COLUMNS`."""
        claim, row = self.claim, self.row
        seconds = None if row is None else row.seconds
        return (
            claim.id,
            f"{claim.paper.printed} [{claim.paper.mark}]",
            self.evidence,
            NOT_RUN if row is None else shown(row.ours, claim.metric),
            self._error(),
            self._allowed(),
            self.verdict,
            NOTHING if seconds is None else f"{seconds:.1f} s",
            self.cost.command,
        )

    def _error(self) -> str:
        error = self.error
        if error is None:
            kept = self.claim.paper.bound and self.row is not None and self.row.ours is not None
            return "keeps the bound" if kept else NOTHING
        return f"{error:+.1e}" if self.claim.rule == "equal" and error else f"{error:+.1%}" if error else "0"

    def _allowed(self) -> str:
        tolerance = self.claim.tests.get(self.evidence)
        if tolerance is None:
            return NOTHING
        return f"{tolerance:g}" if self.claim.rule == "equal" else f"{tolerance:.0%}"

    def as_json(self) -> dict[str, Any]:
        """For machines; `result` is the row as it was kept, null where there is none."""
        return {
            "evidence": self.evidence,
            "verdict": self.verdict,
            "error": self.error,
            "tolerance": self.claim.tests.get(self.evidence),
            "cost": asdict(self.cost),
            "result": None if self.row is None else asdict(self.row),
        }


def lines_of(catalogue: Catalogue, rows: Mapping[tuple[str, str], ClaimRow]) -> list[Line]:
    """Every claim with every kind of evidence there is for it, in the order of the data file."""
    return [
        Line(claim, kind, catalogue.cost(Wanted(claim, kind)), rows.get((claim.id, kind)))
        for claim in catalogue.claims
        for kind in claim.evidence
    ]


def shown(value: float | None, metric: str) -> str:
    """A value with as many digits as the paper prints of its kind."""
    if value is None:
        return "not finite"
    return number(value, metric) if metric in METRICS else f"{value:.4g}"


def unit(metric: str) -> str:
    """The unit of a claim's figure; "" for a count or ratio."""
    if metric in METRICS:
        return unit_of(metric)
    return {"sync_ms": "ms", "staleness_steps": "steps", "max_difference": "of the largest weight"}.get(
        metric, ""
    )


def counts(lines: Sequence[Line]) -> dict[str, dict[str, int]]:
    """How many of each verdict, kind of evidence by kind of evidence."""
    found = Counter((line.evidence, line.verdict) for line in lines)
    return {
        kind: {verdict: found[kind, verdict] for verdict in (HOLDS, FAILS, NOT_RUN, NOT_TESTABLE)}
        for kind in EVIDENCE
        if any(line.evidence == kind for line in lines)
    }


def summary(lines: Sequence[Line]) -> list[str]:
    """The counts in words, one line a kind of evidence, and where the results come from."""
    texts = []
    for kind, verdicts in counts(lines).items():
        told = [f"{count} {_TOLD[verdict]}" for verdict, count in verdicts.items() if count]
        texts.append(f"{kind}: {', '.join(told)}")
    rows = [line.row for line in lines if line.row is not None]
    for (commit, machine), count in Counter(map(_origin, rows)).items():
        texts.append(f"{count} results of commit {commit}, {machine}")
    return texts


_TOLD = {
    HOLDS: "hold",
    FAILS: "fail",
    NOT_RUN: "not run yet",
    NOT_TESTABLE: "decide nothing, being only the closest evidence there is",
}


def _origin(row: ClaimRow) -> tuple[str, str]:
    commit = (row.commit[:7] or "unknown") + (" with changes" if row.dirty else "")
    return commit, f"{row.machine['cpu']}, {row.machine['cores']} cores"


def numbered(lines: Sequence[Line]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The cells of each line, and footnotes: why a kind of evidence decides nothing."""
    notes: dict[str, int] = {}
    found = []
    for line in lines:
        cells = list(line.cells())
        if line.claim.why and (line.verdict == NOT_TESTABLE or not line.claim.closest):
            mark = notes.setdefault(line.claim.why, len(notes) + 1)
            cells[COLUMNS.index("verdict")] += f" [{mark}]"
        found.append(tuple(cells))
    return found, [f"[{mark}] {why}" for why, mark in notes.items()]


def markdown(lines: Sequence[Line]) -> str:
    """The whole report for a README or a pull request; each claim in words."""
    head = ("what is claimed", *COLUMNS)
    texts = [_row(head), _row(["---"] * len(head))]
    cells, notes = numbered(lines)
    for line, own in zip(lines, cells, strict=True):
        texts.append(_row((line.claim.text, *own[:-1], f"`{own[-1]}`")))
    listed = [f"- {text}" for text in (*notes, *summary(lines))]
    return "\n".join([*texts, "", *listed])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def as_document(lines: Sequence[Line]) -> dict[str, Any]:
    """Every claim once, for machines; every number finite, or null."""
    claims: dict[str, dict[str, Any]] = {}
    for line in lines:
        claim = line.claim
        entry = claims.setdefault(
            claim.id,
            {
                "id": claim.id,
                "text": claim.text,
                "experiment": claim.experiment,
                "row": claim.row,
                "column": claim.column,
                "unit": unit(claim.metric),
                "paper": claim.paper.printed,
                "mark": claim.paper.mark,
                "source": claim.source,
                "rule": claim.rule,
                "why": claim.why,
                "evidence": [],
            },
        )
        entry["evidence"].append(line.as_json())
    return {"claims": list(claims.values()), "counts": counts(lines)}
