"""The comparison as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from harness.clustering.comparison import BOUND, Mean, Outcome
from harness.clustering.contestants import ENGINE
from nestpipe.clustering import MAX_PAIRED_SAMPLES

REMARKS = (
    "inflation: unique keys of all micro-batches / unique keys of the batch; ±: 95 % bound of the mean",
    "removed: share of random order's inflation above 1; CPU ms: median of one core's time a batch",
    f"{ENGINE}: what the engine does, above {MAX_PAIRED_SAMPLES:,} samples set-growing",
    f"{BOUND}: no order can do better, and none need reach it",
)


def table_of(outcomes: Sequence[Outcome], title: str) -> Table:
    """One line an outcome, a section a workload and size of micro-batches."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("workload", no_wrap=True)
    table.add_column("micro-batch", justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    for name in ("inflation", "removed", "CPU ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        table.add_row(
            outcome.workload,
            f"{outcome.micro_batch} of {outcome.num_samples}",
            outcome.algorithm,
            _cell(outcome.inflation, "{:.3f}"),
            "-" if outcome.removed is None else _cell(outcome.removed, "{:.1%}"),
            "-" if outcome.cpu_ms is None else f"{outcome.cpu_ms:.1f}",
            end_section=outcome.algorithm == BOUND,
        )
    return table


def _cell(value: Mean, form: str) -> str:
    return f"{form.format(value.mean)} ± {form.format(value.bound)}"
