"""The claims and their verdicts as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from harness.claims.claim import Catalogue, Cost, Wanted
from harness.claims.report import COLUMNS, NOTHING, Line, numbered, summary
from harness.claims.rules import RULES
from harness.durations import duration
from harness.paper import MARKS
from harness.tables import console_for

_NUMBERS = ("paper", "ours", "error", "allowed", "took")


def print_claims(catalogue: Catalogue, wanted: Sequence[Wanted]) -> None:
    """Print claims with what can test them and what that takes."""
    lines = []
    for each in wanted:
        cost = catalogue.cost(each)
        tolerance = each.claim.tests.get(each.evidence)
        lines.append(
            (
                each.claim.id,
                each.claim.text,
                f"{each.claim.paper.printed} [{each.claim.paper.mark}]",
                each.evidence,
                each.claim.rule,
                "decides nothing" if tolerance is None else f"{tolerance:g}",
                *_cost(cost),
            )
        )
    heads = ("claim", "what is claimed", "paper", "evidence", "rule", "tolerance", "time", "MB", "command")
    _print("the paper's claims", heads, lines, ("paper", "tolerance", "time", "MB"))
    marks = dict.fromkeys(each.claim.paper.mark for each in wanted)
    print_lines(f"[{mark}] {MARKS[mark]}" for mark in MARKS if mark in marks)
    rules = dict.fromkeys(each.claim.rule for each in wanted)
    print_lines(f"{name}: {RULES[name].meaning}" for name in RULES if name in rules)


def _cost(cost: Cost) -> tuple[str, str, str]:
    return duration(cost.seconds), f"{cost.memory_mb:.0f}", cost.command


def print_report(lines: Sequence[Line], title: str) -> None:
    """Print each claim's newest verdict, kind of evidence by kind of evidence."""
    cells, notes = numbered(lines)
    _print(title, COLUMNS, cells, _NUMBERS)
    print_lines((*notes, *summary(lines)))


def _print(title: str, heads: Sequence[str], lines: Iterable[Sequence[str]], right: Sequence[str]) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", no_wrap=True)
    before = NOTHING
    for line in lines:
        # A claim stands once, and rich would read "[T]" as markup.
        shown = [NOTHING if line[0] == before else line[0], *line[1:]]
        table.add_row(*("" if cell == NOTHING else cell.replace("[", "\\[") for cell in shown))
        before = line[0]
    console_for(table).print(table)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout as they are."""
    console = console_for(Table())
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
