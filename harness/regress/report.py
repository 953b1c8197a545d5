"""The findings for people: a table on the screen, and the same as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from harness.regress.findings import (
    REGRESSIONS,
    Finding,
    Verdict,
    count_verdicts,
    exit_code,
)
from harness.regress.reference import Reference
from harness.tables import console_for

SCHEMA = 1
"""Of the line of JSON."""
MAX_LINES = 40
OUTCOMES = ("fine", "regression", "could not tell")
"""By exit code."""
_GROUPS = {
    "count": "counted in a run",
    "simulated": "simulated",
    "kernel": "compiled kernels",
    "time": "steps timed",
    "op": "ops timed",
}
_COLUMNS = ("what", "verdict", "reference", "now", "change", "p", "note")


def notable(findings: Sequence[Finding]) -> list[Finding]:
    """What a reader must see: everything that is not as before, regressions first, and every step's time."""
    quiet_ops = {Verdict.SAME, Verdict.INCONCLUSIVE}
    shown = [
        finding
        for finding in findings
        if finding.group == "time"
        or (finding.verdict not in quiet_ops if finding.group == "op" else finding.verdict != Verdict.SAME)
    ]
    return sorted(shown, key=lambda finding: finding.verdict not in REGRESSIONS)


def summary(findings: Sequence[Finding]) -> list[str]:
    """One line a kind of number: how many came out how."""
    counts = count_verdicts(findings)
    lines = []
    for group, label in _GROUPS.items():
        parts = [f"{counts[group, verdict]} {verdict}" for verdict in Verdict if (group, verdict) in counts]
        if parts:
            lines.append(f"{label}: {', '.join(parts)}")
    return lines


def remarks(reference: Reference, findings: Sequence[Finding], *, timed: bool) -> list[str]:
    """The outcome in words, and what a reader may do about it."""
    code = exit_code(findings)
    lines = [f"outcome: {OUTCOMES[code]}"]
    verdicts = {finding.verdict for finding in findings if finding.decides}
    if Verdict.MORE in verdicts or Verdict.LESS in verdicts or Verdict.GONE in verdicts:
        lines.append("where a change is meant, record it: --update --reason TEXT")
    if Verdict.NEW in verdicts:
        lines.append("new numbers are guarded from the next --update on")
    if Verdict.NOT_COMPARABLE in verdicts:
        lines.append(
            "times of another machine or other versions: record a reference of your own with --times"
        )
    if reference.times is not None and not timed:
        lines.append("times were not measured (--times)")
    latest = reference.history[-1]
    lines.append(f"reference: {latest.date}, commit {latest.commit[:7] or 'unknown'}: {latest.reason}")
    return lines


def print_report(title: str, reference: Reference, findings: Sequence[Finding], *, timed: bool) -> None:
    """The table of what is notable and the lines below it, on stdout."""
    shown = notable(findings)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, no_wrap=True, justify="right" if name in _COLUMNS[2:6] else "left")
    for finding in shown[:MAX_LINES]:
        table.add_row(*map(escape, _cells(finding)))
    console = console_for(table)
    if shown:
        console.print(table)
    else:
        console.print(title, markup=False, highlight=False, soft_wrap=True)
    for line in [*_rest(shown), *summary(findings), *remarks(reference, findings, timed=timed)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def markdown(title: str, reference: Reference, findings: Sequence[Finding], *, timed: bool) -> str:
    """The report as GitHub renders it."""
    shown = notable(findings)
    lines = [f"### {title}: {OUTCOMES[exit_code(findings)]}", ""]
    if shown:
        lines += [f"| {' | '.join(_COLUMNS)} |", f"|---|---|{'--:|' * 4}---|"]
        for finding in shown[:MAX_LINES]:
            cells = [cell.replace("|", "\\|") for cell in _cells(finding)]
            name = f"`{cells[0]}`"
            verdict = f"**{cells[1]}**" if finding.verdict in REGRESSIONS else cells[1]
            lines.append(f"| {' | '.join([name, verdict, *cells[2:]])} |")
        lines.append("")
    rest = [*_rest(shown), *summary(findings), *remarks(reference, findings, timed=timed)[1:]]
    lines += [f"- {line}" for line in rest]
    return "\n".join(lines) + "\n"


def _rest(shown: Sequence[Finding]) -> list[str]:
    left = len(shown) - MAX_LINES
    return [f"and {left} more lines, all of them under --json"] if left > 0 else []


def _cells(finding: Finding) -> list[str]:
    return [
        finding.name,
        str(finding.verdict),
        _number(finding.reference),
        _number(finding.now),
        _change(finding),
        "" if finding.p_value is None else f"{finding.p_value:.1g}",
        "; ".join(filter(None, (finding.note, finding.unit))),
    ]


def _change(finding: Finding) -> str:
    if finding.effect is not None:
        return f"{finding.effect:+.1%}"
    if finding.verdict == Verdict.SAME or not finding.reference or finding.now is None:
        return ""
    return f"{finding.now / finding.reference - 1:+.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"
