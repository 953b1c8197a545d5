"""The figure of `nestpipe data stats`: skew, lengths, repetition and inflation of several workloads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, PercentFormatter, ScalarFormatter

from workloads.statistics import QUANTILES, FeatureStatistics, Statistics

_SHARES = {
    "unique_ratio": "unique",
    "next_overlap": "also in\nnext batch",
    "top_share": "on top 5 %\nof keys",
}


def save_figure(described: Mapping[str, Statistics], folder: Path) -> tuple[Path, Path]:
    """Draw the workloads and write `stats.png` and `stats.svg` into `folder`."""
    with sns.axes_style("whitegrid"), sns.color_palette("colorblind"):
        figure = draw(described)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "stats.png", folder / "stats.svg"
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return paths


def draw(described: Mapping[str, Statistics]) -> Figure:
    """Four panels; skew and lengths are those of each workload's largest feature."""
    # A figure of its own, not pyplot's: nothing global to close.
    figure = Figure(figsize=(11.0, 8.0), layout="constrained")
    (skew, lengths), (shares, inflation) = figure.subplots(2, 2)
    _draw_skew(skew, described)
    _draw_lengths(lengths, described)
    _draw_shares(shares, described)
    _draw_inflation(inflation, described)
    handles, labels = skew.get_legend_handles_labels()
    skew.legend().remove()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4), frameon=False)
    return figure


def largest_feature(found: Statistics) -> FeatureStatistics:
    """The single feature of most keys; the first line, of all features, does not count."""
    return max(found.features[1:], key=lambda feature: feature.num_keys)


def _draw_skew(panel: Axes, described: Mapping[str, Statistics]) -> None:
    points = [
        {"workload": name, "rank": rank, "accesses": accesses}
        for name, found in described.items()
        for rank, accesses in largest_feature(found).accesses_by_rank
    ]
    columns = ["workload", "rank", "accesses"]
    sns.lineplot(pd.DataFrame(points, columns=columns), x="rank", y="accesses", hue="workload", ax=panel)
    panel.set(xscale="log", yscale="log", xlabel="rank of a key in a batch", ylabel="accesses in a batch")
    panel.set_title("skew of the largest table")


def _draw_lengths(panel: Axes, described: Mapping[str, Statistics]) -> None:
    points = [
        {"workload": name, "share": quantile, "length": length}
        for name, found in described.items()
        for quantile, length in zip(QUANTILES, largest_feature(found).length_quantiles, strict=False)
    ]
    columns = ["workload", "share", "length"]
    sns.lineplot(
        pd.DataFrame(points, columns=columns),
        x="length",
        y="share",
        hue="workload",
        marker="o",
        orient="y",
        ax=panel,
        legend=False,
    )
    panel.set(xscale="log", xlabel="keys a sample, at most", ylabel="share of samples")
    panel.set_title("lengths of the largest table's feature")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _draw_shares(panel: Axes, described: Mapping[str, Statistics]) -> None:
    bars = [
        {"workload": name, "what": label, "share": getattr(found.features[0], metric)}
        for name, found in described.items()
        for metric, label in _SHARES.items()
    ]
    sns.barplot(pd.DataFrame(bars), x="what", y="share", hue="workload", ax=panel, legend=False)
    panel.set(xlabel="", ylabel="share", title="keys of a batch, all tables")
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _draw_inflation(panel: Axes, described: Mapping[str, Statistics]) -> None:
    points = pd.DataFrame(
        [
            {"workload": name, "N": level.num_micro_batches, "order": order, "inflation": inflation}
            for name, found in described.items()
            for level in found.inflation
            for order, inflation in (("as it comes", level.own_order), ("clustered", level.clustered))
        ]
    )
    sns.lineplot(points, x="N", y="inflation", hue="workload", style="order", markers=True, ax=panel)
    panel.set_xscale("log", base=2)
    # Logarithmic, or one data set of many repetitions would press all others to the floor.
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(ScalarFormatter())
    panel.yaxis.set_major_locator(LogLocator(base=2, subs=(1.0, 1.5)))
    counts = sorted(points["N"].unique())
    panel.set_xticks(counts, [str(count) for count in counts])
    panel.minorticks_off()
    panel.set(
        xlabel="micro-batches", ylabel="unique keys of all / of the batch", title="inflation, all tables"
    )
    # Colours are explained above the panels.
    handles, labels = panel.get_legend_handles_labels()
    start = labels.index("order") + 1
    panel.legend(handles[start:], labels[start:], title="order of samples")
