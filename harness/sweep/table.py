"""The ladder that a person reads: each step, its change, and what it gained; flat and negative ones too."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from harness.sweep.ladder import MIN_GAIN, Rung, Spread
from harness.sweep.plan import Sweep
from harness.tables import console_for

REMARK = (
    "medians over rounds (lowest-highest); gain: throughput over the step it builds on in the same round; "
    f"faster and slower: all rounds agree, by {MIN_GAIN:.0%} or more, otherwise flat"
)


def print_ladder(sweep: Sweep, rungs: Sequence[Rung], evidence: str, remarks: Sequence[str]) -> None:
    """Print the table and what a reader must know on stdout."""
    table = Table(title=_title(sweep, evidence), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("step", "change"):
        table.add_column(name)
    for name in ("workers", "step ms", "rounds", "gain", "over the first"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("verdict", "exactness"):
        table.add_column(name, no_wrap=True)
    for number, rung in enumerate(rungs):
        cells = (
            rung.step,
            rung.change if rung.base is None else f"{rung.change} (on {rung.base})",
            str(rung.workers),
            _shown(rung.step_ms, ".2f"),
            str(rung.rounds),
            _shown(rung.gain, ".3f", "x"),
            _shown(rung.total_gain, ".3f", "x"),
            rung.verdict,
            rung.exactness or "-",
        )
        last = number + 1 == len(rungs) or rungs[number + 1].workers != rung.workers
        # Rich would read "[...]" as markup.
        table.add_row(*(cell.replace("[", "\\[") for cell in cells), end_section=last)
    console = console_for(table)
    console.print(table)
    for line in (REMARK, *remarks):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_plan(sweep: Sweep, pending: Sequence[str]) -> None:
    """Print what would be measured; `pending` names the steps of the missing cells, once a cell."""
    table = Table(title=f"sweep {sweep.name}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("step", "builds on", "change"):
        table.add_column(name)
    table.add_column("to measure", justify="right", no_wrap=True)
    whole = sweep.num_rounds * len(sweep.workers)
    for step in sweep.steps:
        cells = (step.name, step.base or "-", step.change, f"{pending.count(step.name)} of {whole}")
        table.add_row(*(cell.replace("[", "\\[") for cell in cells))
    console_for(table).print(table)


def _title(sweep: Sweep, evidence: str) -> str:
    return (
        f"{sweep.name} ({evidence}), seed {sweep.seed}, {sweep.num_steps} measured steps a launch, "
        f"{sweep.num_rounds} interleaved round{'s' if sweep.num_rounds > 1 else ''}"
    )


def _shown(spread: Spread | None, form: str, unit: str = "") -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return f"{spread.median:{form}}{unit}"
    return f"{spread.median:{form}}{unit} ({spread.low:{form}}-{spread.high:{form}})"
