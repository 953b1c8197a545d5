"""Curves of a training: loss and metrics by epoch, a line a method, mean and spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.training.rows import Launched

_NUM_COLUMNS = 3
_DASHES = ("", (4, 1.5), (1, 1), (3, 1, 1, 1), (6, 2), (5, 1, 2, 1))


def save_curves(launches: Sequence[Launched], title: str, folder: Path, name: str) -> tuple[Path, Path]:
    """Draw the launches and write them as `<name>.png` and `<name>.svg` into `folder`."""
    figure = draw_curves(frame(launches), title)
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return paths


def frame(launches: Sequence[Launched]) -> pd.DataFrame:
    """Long form: method, seed, epoch, metric and value; the loss is the metric "training loss"."""
    several = len({launched.num_workers for launched in launches}) > 1
    entries = []
    for launched in launches:
        for method in launched.report.methods:
            label = f"{method.method}, {launched.num_workers} workers" if several else method.method
            for epoch in method.epochs:
                values = {"training loss": epoch.loss, **epoch.metrics}
                entries += [
                    (label, launched.seed, epoch.number, metric, value) for metric, value in values.items()
                ]
    return pd.DataFrame(entries, columns=["method", "seed", "epoch", "metric", "value"])


def draw_curves(data: pd.DataFrame, title: str) -> Figure:
    """A panel a metric; the band is one standard deviation over seeds to either side."""
    metrics = list(dict.fromkeys(data["metric"]))
    num_columns = min(_NUM_COLUMNS, len(metrics))
    num_rows = math.ceil(len(metrics) / num_columns)
    # A figure of its own, not pyplot's: nothing global to close.
    figure = Figure(figsize=(4.2 * num_columns + 2.0, 3.2 * num_rows), layout="constrained")
    with sns.axes_style("whitegrid"), sns.color_palette("colorblind"):
        panels = figure.subplots(num_rows, num_columns, squeeze=False)
        flat = [panel for row in panels for panel in row]
        for panel, metric in zip(flat, metrics, strict=False):
            lines(panel, data[data["metric"] == metric], errorbar="sd", y_label=metric)
    for panel in flat[len(metrics) :]:
        panel.remove()
    share_legend(figure, flat[: len(metrics)])
    figure.suptitle(title, fontsize=12)
    return figure


def lines(panel: Axes, data: pd.DataFrame, *, errorbar: str, y_label: str) -> None:
    """A line a method over epochs: the mean over seeds, and `errorbar` ("sd" or "se") as a band."""
    num_methods = data["method"].nunique()
    sns.lineplot(
        data,
        x="epoch",
        y="value",
        hue="method",
        style="method",
        dashes=[_DASHES[index % len(_DASHES)] for index in range(num_methods)],
        markers=["o"] * num_methods if data["epoch"].nunique() < 30 else False,
        markersize=4,
        errorbar=errorbar,
        err_kws={"alpha": 0.12},
        ax=panel,
    )
    panel.set(xlabel="epoch", ylabel=y_label)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def share_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend beside panels that show the same methods."""
    handles, labels = panels[0].get_legend_handles_labels()
    for panel in panels:
        legend = panel.get_legend()
        if legend is not None:
            legend.remove()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
