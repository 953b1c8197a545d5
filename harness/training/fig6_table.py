"""Differences to synchronous TorchRec, beside what the paper states of its own data."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from harness.paper import MARKS, Paper
from harness.tables import console_for
from harness.training.statistics import Difference, Estimate
from harness.training.tables import thousandths


def against_paper(compared: Sequence[Difference], metrics: Sequence[str], reference: Paper) -> Table:
    """A line a method and metric, in thousandths."""
    title = f"differences to {compared[0].base} in 1e-3, paired by seed, mean ± standard error"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("metric", no_wrap=True)
    for name in ("paper (KuaiRand-27K)", "ours", "users whose hit differs"):
        table.add_column(name, justify="right", no_wrap=True)
    for difference in compared:
        for metric in metrics:
            hits = difference.hits.get(int(metric.partition("@")[2]))
            table.add_row(
                difference.method if metric == metrics[0] else "",
                metric,
                _paper(reference, difference.method, metric),
                thousandths(difference.metrics[metric]),
                _count(hits, difference.num_users),
                end_section=metric == metrics[-1],
            )
    return table


def print_against_paper(compared: Sequence[Difference], metrics: Sequence[str], reference: Paper) -> None:
    """Print the table on stdout, and what the marks of the paper's figures mean."""
    table = against_paper(compared, metrics, reference)
    console = console_for(table)
    console.print(table)
    marks = dict.fromkeys(cell.mark for cell in reference.cells.values())
    line = "; ".join(f"[{mark}] {MARKS[mark]}" for mark in marks)
    for text in (line, "the paper's differences are of other data: none of them is reproduced here"):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _paper(reference: Paper, method: str, metric: str) -> str:
    cell = reference.get(method, metric)
    if cell is None:
        return "-"
    # Rich would read "[S]" as markup.
    return f"{'within ' if cell.bound else ''}{1e3 * cell.value:.1f} \\[{cell.mark}]"


def _count(hits: Estimate | None, num_users: int) -> str:
    return "-" if hits is None else f"{hits.mean:.1f} of {num_users}"
