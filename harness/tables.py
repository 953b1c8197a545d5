"""The table that a person reads; footnotes carry what a number alone would hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from harness.summary import FAILED, UNCHECKED, MethodRun, Verdict


@dataclass(frozen=True)
class Relative:
    """How one method's throughput compares; None where there is nothing sound to compare with."""

    speedup: float | None
    """Over the first method at the same worker count."""
    efficiency: float | None
    """Throughput a worker over that of the same method at its smallest worker count."""


def relate(run: MethodRun, runs: Sequence[MethodRun]) -> Relative:
    """Speedup and efficiency of `run` among `runs`, the first of which names the base.

    efficiency = QPS(W) / (QPS(W0) x W / W0). A method that failed its check has no speedup.
    """
    base = next((other for other in runs if other.workers == run.workers), run)
    smallest = min((other for other in runs if other.method == run.method), key=lambda other: other.workers)
    failed = FAILED in (run.verdict.kind, base.verdict.kind)
    efficiency = run.qps / (smallest.qps * run.workers / smallest.workers)
    return Relative(None if failed else run.qps / base.qps, efficiency)


def comparison(runs: Sequence[MethodRun], title: str, remarks: Sequence[str] = ()) -> tuple[Table, list[str]]:
    """The table of all runs and its footnotes."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for name in (
        "workers",
        "step ms",
        "p10-p90",
        "QPS",
        "speedup",
        "efficiency",
        "lookup ms",
        "comm ms",
        "dense ms",
        "other ms",
        "loss",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("exactness", no_wrap=True)
    footnotes: dict[str, int] = {}
    for run in runs:
        marks = "".join(f" [{footnotes.setdefault(note, len(footnotes) + 1)}]" for note in run.notes)
        relative = relate(run, runs)
        table.add_row(
            run.method,
            str(run.workers),
            f"{run.step_ms.p50:.2f}",
            f"{run.step_ms.p10:.2f}-{run.step_ms.p90:.2f}",
            f"{run.qps:,.0f}",
            _ratio(relative.speedup, "x"),
            _ratio(relative.efficiency, ""),
            f"{run.lookup_ms:.2f}",
            f"{run.comm_ms:.2f}",
            f"{run.dense_ms:.2f}",
            f"{run.other_ms:.2f}",
            f"{run.loss[-1]:.5g}",
            # Rich would read "[1]" as markup.
            (exactness(run.verdict) + marks).replace("[", "\\["),
            end_section=run is not runs[-1] and _next(runs, run).workers != run.workers,
        )
    numbered = [f"[{number}] {note}" for note, number in footnotes.items()]
    return table, [*numbered, *remarks]


def print_comparison(runs: Sequence[MethodRun], title: str, remarks: Sequence[str] = ()) -> None:
    """Print the table and its footnotes on stdout."""
    table, footnotes = comparison(runs, title, remarks)
    console = console_for(table)
    console.print(table)
    for line in footnotes:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def console_for(table: Table) -> Console:
    """A console on stdout that is wide enough: cut numbers are worse than long lines."""
    console = Console()
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    return Console(width=max(console.width, needed))


def exactness(verdict: Verdict) -> str:
    """A verdict in a few words."""
    if verdict.kind == UNCHECKED:
        return UNCHECKED
    difference = _difference(verdict.max_difference)
    return f"{verdict.kind}: {difference} against {verdict.against}{_arbitrated(verdict)}"


def _arbitrated(verdict: Verdict) -> str:
    if verdict.arbiter is None:
        return ""
    name = {"ulp": "one ulp"}.get(verdict.arbiter.kind, verdict.arbiter.kind)
    return f" ({name}: {_difference(verdict.arbiter.max_difference)})"


def _difference(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.1e}" if value else "0"


def _next(runs: Sequence[MethodRun], run: MethodRun) -> MethodRun:
    return runs[next(index for index, other in enumerate(runs) if other is run) + 1]


def _ratio(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f}{unit}"
