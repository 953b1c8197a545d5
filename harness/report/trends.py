"""The same comparison at several commits: how steps and speedups went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from harness.report import figures
from harness.report.comparison import method_runs, setup_key
from harness.report.environment import environment_key
from harness.report.page import Block, Figure, Section, Table, slug
from harness.report.sources import RUN, Invocation, Results
from harness.report.svg import svg_of
from harness.tables import relate

NUM_SHOWN = 6
NUM_COMMITS = 30
_COLUMNS = ("commit", "method", "workers", "step", "speedup")


def section(results: Results) -> Section | None:
    """Set-ups that were measured at more than one commit in one environment; None where there are none."""
    series: dict[str, list[Invocation]] = {}
    for each in results.of(RUN):
        series.setdefault(f"{environment_key(each)} {setup_key(each)}", []).append(each)
    several = [own for own in series.values() if len({each.commit for each in own}) > 1]
    if not several:
        return None
    several.sort(key=lambda own: own[-1].run_id, reverse=True)
    blocks = [block for own in several[:NUM_SHOWN] for block in _blocks(own)]
    intro = (
        "Runs of one set-up on one machine with the same versions, by commit in the order in which they were "
        "first measured; several runs of a commit are averaged. Steps drift with the machine: the speedup, "
        "measured inside one run, drifts less."
    )
    return Section("trends", "Trends over commits", intro, tuple(blocks))


def _blocks(series: Sequence[Invocation]) -> Iterator[Block]:
    data = _frame(series)
    about = f"{series[-1].about} ({series[-1]['evidence']})"
    key = series[-1].run_id
    for workers, own in data.groupby("workers", sort=False):
        if own["commit"].nunique() < 2:
            continue
        for column, label in (("step", "step, ms"), ("speedup", "speedup over the run's first method")):
            values = own.assign(value=own[column]).dropna(subset=["value"])
            if not len(values):
                continue
            name = slug("trend", key, workers, column)
            title = f"{label}, {workers} workers: {about}"
            yield Figure(name, title, svg_of(figures.trend(values, label), name, title))
    yield _table(data, f"Trends: {about}")


def _frame(series: Sequence[Invocation]) -> pd.DataFrame:
    """A line a commit, method and number of workers; commits in order, their runs averaged."""
    lines = []
    for each in series:
        runs, _ = method_runs(each)
        for run in runs:
            speedup = relate(run, runs).speedup
            lines.append((each.commit, run.method, run.workers, run.step_ms.p50, speedup))
    data = pd.DataFrame(lines, columns=list(_COLUMNS)).astype({"speedup": float})
    kept = list(dict.fromkeys(data["commit"]))[-NUM_COMMITS:]
    data = data[data["commit"].isin(kept)]
    return data.groupby(["commit", "method", "workers"], sort=False, as_index=False).mean()


def _table(data: pd.DataFrame, caption: str) -> Table:
    speedups = ["-" if np.isnan(value) else f"{value:.2f}x" for value in data["speedup"]]
    steps = [f"{value:.2f}" for value in data["step"]]
    words = (data[name].astype(str) for name in ("commit", "method", "workers"))
    rows = tuple(zip(*words, steps, speedups, strict=True))
    return Table(
        caption,
        ("commit", "method", "workers", "step ms", "speedup"),
        rows,
        words=frozenset({"commit", "method"}),
    )
