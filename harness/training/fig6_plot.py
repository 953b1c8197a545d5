"""The figure of fig6: each metric by epoch, and below it the difference to synchronous TorchRec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.paper import Paper
from harness.training.plots import frame, lines, share_legend
from harness.training.rows import Launched


def save_figure(
    launches: Sequence[Launched],
    base: str,
    metrics: Sequence[str],
    reference: Paper,
    title: str,
    folder: Path,
) -> tuple[Path, Path]:
    """Draw and write `fig6.png` and `fig6.svg` into `folder`."""
    figure = draw(frame(launches), base, metrics, reference, title)
    paths = folder / "fig6.png", folder / "fig6.svg"
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return paths


def draw(data: pd.DataFrame, base: str, metrics: Sequence[str], reference: Paper, title: str) -> Figure:
    """Above mean and standard deviation over seeds, below paired differences with standard errors.

    The paper's differences, which are of other data, stand as hollow diamonds beside the last epoch, its
    bounds as dotted lines.
    """
    compared = paired(data, base)
    figure = Figure(figsize=(3.6 * len(metrics) + 2.0, 6.2), layout="constrained")
    with sns.axes_style("whitegrid"), sns.color_palette("colorblind"):
        panels = figure.subplots(2, len(metrics), squeeze=False)
        for (above, below), metric in zip(panels.T, metrics, strict=True):
            lines(above, data[data["metric"] == metric], errorbar="sd", y_label=metric)
            lines(below, compared[compared["metric"] == metric], errorbar="se", y_label=f"Δ {metric}, 1e-3")
            _mark_paper(below, list(dict.fromkeys(data["method"])), metric, reference)
    share_legend(figure, [panel for row in panels for panel in row])
    below = f"below: paired differences to {base}; ◇ and dotted: the paper's, of other data"
    figure.suptitle(f"{title}\n{below}", fontsize=12)
    return figure


def paired(data: pd.DataFrame, base: str) -> pd.DataFrame:
    """Differences to `base` in thousandths, by method, seed, epoch and metric; zero for `base` itself."""
    keys = ["seed", "epoch", "metric"]
    reference = data[data["method"] == base].set_index(keys)["value"]
    matched = reference.reindex(pd.MultiIndex.from_frame(data[keys])).to_numpy()
    return data.assign(value=1e3 * (data["value"].to_numpy() - matched))


def _mark_paper(panel: Axes, methods: Sequence[str], metric: str, reference: Paper) -> None:
    last = panel.get_xlim()[1]
    for method, colour in zip(methods, sns.color_palette("colorblind"), strict=False):
        cell = reference.get(method, metric)
        if cell is None:
            continue
        if cell.bound:
            for value in (-cell.value, cell.value):
                panel.axhline(1e3 * value, color=colour, linestyle=":", linewidth=1)
            continue
        panel.scatter(
            [last],
            [1e3 * cell.value],
            marker="D",
            facecolors="none",
            edgecolors=[colour],
            zorder=5,
            clip_on=False,
        )
