"""What `nestpipe train` and `nestpipe reproduce fig6` left: where each method got, and its curves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from harness.report import figures
from harness.report.page import Block, Figure, Section, Table, slug
from harness.report.sources import TRAIN, Invocation, Results
from harness.report.svg import svg_of
from harness.training.statistics import Estimate
from harness.training.tables import estimate

NUM_SHOWN = 6
_SECONDS = ("train_s", "evaluation_s")


def section(results: Results) -> Section | None:
    """The latest trainings; None where there are none."""
    trainings = list(reversed(results.of(TRAIN)))
    if not trainings:
        return None
    blocks = [block for each in trainings[:NUM_SHOWN] for block in _blocks(each)]
    intro = (
        "Metrics of the last epoch, mean ± standard error over seeds; in figures bands of one standard "
        "deviation. Methods that train exactly lie on one curve."
    )
    if len(trainings) > NUM_SHOWN:
        intro += f" {len(trainings) - NUM_SHOWN} earlier trainings are not shown."
    return Section("training", "Training", intro, tuple(blocks))


def _blocks(invocation: Invocation) -> Iterator[Block]:
    data = _frame(invocation)
    label = f"{invocation.about} ({invocation.origin})"
    yield _table(data, invocation, label)
    for workers, own in data.groupby("workers", sort=False):
        for metric in dict.fromkeys(own["metric"]):
            if metric in _SECONDS or own["epoch"].nunique() < 2:
                continue
            values = own[own["metric"] == metric]
            shown = "training loss" if metric == "loss" else metric
            is_repeated = values["seed"].nunique() > 1
            drawn = figures.curves(values, "epoch", shown, errorbar="sd" if is_repeated else None)
            name = slug("train", invocation.run_id, workers, metric)
            title = f"{shown}, {workers} workers: {label}"
            yield Figure(name, title, svg_of(drawn, name, title))


def _frame(invocation: Invocation) -> pd.DataFrame:
    names = ["method", "workers", "seed", "epoch", "metric", "value"]
    data = pd.DataFrame([{name: row[name] for name in names} for row in invocation.rows])
    return data.astype({"value": float})


def _table(data: pd.DataFrame, invocation: Invocation, label: str) -> Table:
    metrics = [metric for metric in dict.fromkeys(data["metric"]) if metric != "evaluation_s"]
    rows = []
    for (method, workers), own in data.groupby(["method", "workers"], sort=False):
        last = own[own["epoch"] == own["epoch"].max()]
        cells = [_level(last[last["metric"] == metric]["value"]) for metric in metrics]
        num_seeds = own["seed"].nunique()
        rows.append((str(method), str(workers), str(last["epoch"].iloc[0]), str(num_seeds), *cells))
    columns = ("method", "workers", "epoch", "seeds", *metrics)
    notes = (f"settings: {invocation.changed_settings}",)
    return Table(f"{label}, run {invocation.run_id}", columns, tuple(rows), notes)


def _level(values: Any) -> str:
    known = tuple(float(value) for value in values if np.isfinite(value))
    return estimate(Estimate(known)) if known else "-"
