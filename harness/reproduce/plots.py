"""Figures of the items: what we have as bars or lines, the paper's figures as hollow diamonds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from harness.reproduce.cells import Cell
from harness.reproduce.items import BATCH_SIZE, Item
from harness.reproduce.metrics import unit_of

PARTS = {"dense_ms": "dense", "comm_ms": "communication", "lookup_ms": "lookup"}
"""What a step is made of, from the bottom of its bar to the top."""
# Hollow, so that a point of ours below it stays visible.
_PAPER: Mapping[str, Any] = {
    "marker": "D",
    "s": 48,
    "facecolors": "none",
    "edgecolors": "black",
    "linewidths": 1.3,
    "zorder": 5,
}
_MARKERS = ("o", "s", "^", "v", "P", "X")
_LEGEND_WIDTH = 2.2


def save_figure(item: Item, cells: Sequence[Cell], title: str, folder: Path) -> tuple[Path, Path]:
    """Draw an item's cells and write them as `<item>.png` and `<item>.svg` into `folder`."""
    figure = draw(item, cells, title)
    paths = folder / f"{item.name}.png", folder / f"{item.name}.svg"
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return paths


def draw(item: Item, cells: Sequence[Cell], title: str) -> Figure:
    """The figure of an item's cells, in colours that the colour-blind can tell apart."""
    with sns.axes_style("whitegrid"), sns.color_palette("colorblind"):
        figure = _DRAWINGS[item.name](_frame(cells))
    figure.suptitle(title, fontsize=12)
    return figure


def _frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """The cells with a column each for row, group, metric, ours, paper and bound; [?] stays out."""
    return pd.DataFrame(
        {
            "row": [cell.row for cell in cells],
            "group": [cell.group for cell in cells],
            "metric": [cell.metric for cell in cells],
            "ours": [cell.ours for cell in cells],
            "paper": [_drawable(cell, is_bound=False) for cell in cells],
            "bound": [_drawable(cell, is_bound=True) for cell in cells],
        }
    )


def _drawable(cell: Cell, *, is_bound: bool) -> float | None:
    reference = cell.reference
    if reference is None or reference.mark == "?" or bool(reference.bound) is not is_bound:
        return None
    return reference.value


def _panels(num_panels: int, width: float, *, share_y: bool = True) -> tuple[Figure, list[Axes]]:
    # A figure of its own, not pyplot's: nothing global to close.
    figure = Figure(figsize=(width * num_panels + _LEGEND_WIDTH, 4.2), layout="constrained")
    panels = figure.subplots(1, num_panels, sharey=share_y, squeeze=False)
    return figure, list(panels[0])


def _breakdown(data: pd.DataFrame) -> Figure:
    groups = list(dict.fromkeys(data["group"]))
    num_rows = data["row"].nunique()
    figure, panels = _panels(len(groups), max(2.4, 0.6 * num_rows + 0.6))
    for panel, group in zip(panels, groups, strict=True):
        _stack(panel, data[data["group"] == group], with_legend=panel is panels[-1])
        panel.set_xlabel("" if not group else f"{int(group):,} workers")
        panel.set_ylabel("step, ms of the paper's")
    return figure


def _stack(panel: Axes, data: pd.DataFrame, *, with_legend: bool) -> None:
    rows = list(dict.fromkeys(data["row"]))
    wide = data.pivot_table(index="row", columns="metric", values="ours", sort=False).loc[rows]
    parts = {label: wide[metric] for metric, label in PARTS.items() if metric in wide}
    if "dense_ms" not in wide:
        parts = {"dense and the rest": wide["step_ms"] - sum(parts.values()), **parts}
    elif "other_ms" in wide:
        parts["not explained"] = wide["other_ms"].clip(lower=0)
    heights = pd.DataFrame(parts).rename_axis("row").reset_index()
    stacked = heights.melt("row", var_name="part", value_name="ms")
    # seaborn stacks the last level lowest.
    sns.histplot(
        stacked,
        x="row",
        weights="ms",
        hue="part",
        hue_order=list(reversed(parts)),
        multiple="stack",
        shrink=0.75,
        alpha=1,
        linewidth=0,
        ax=panel,
        legend=with_legend,
        palette=dict(zip(parts, sns.color_palette("colorblind"), strict=False)),
    )
    paper = data[(data["metric"] == "step_ms") & data["paper"].notna()]
    if len(paper):
        panel.scatter([rows.index(row) for row in paper["row"]], paper["paper"], label="paper", **_PAPER)
    panel.grid(visible=False, axis="x")
    panel.tick_params(axis="x", rotation=40)
    for label in panel.get_xticklabels():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
    if with_legend:
        title = "exposed (◇ paper's step)" if len(paper) else "exposed"
        sns.move_legend(panel, "upper left", bbox_to_anchor=(1, 1), title=title)


def _lines(metrics: Mapping[str, str], x_label: str, y_label: str = "") -> Callable[[pd.DataFrame], Figure]:
    """One panel a metric: our values as lines over the sweep, the paper's as diamonds."""

    def draw(data: pd.DataFrame) -> Figure:
        figure, panels = _panels(len(metrics), 4.4, share_y=bool(y_label))
        for panel, (metric, label) in zip(panels, metrics.items(), strict=True):
            own = data[data["metric"] == metric].assign(at=lambda own: own["group"].astype(int))
            _line_panel(panel, own, with_legend=panel is panels[-1])
            panel.set(xlabel=x_label, ylabel=y_label or label, title=label if y_label else "")
            panel.margins(y=0.08)
            panel.set_ylim(bottom=0)
            if unit_of(metric) == "fraction":
                panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return figure

    return draw


def _line_panel(panel: Axes, data: pd.DataFrame, *, with_legend: bool) -> None:
    markers = list(_MARKERS[: data["row"].nunique()])
    sns.lineplot(data, x="at", y="ours", hue="row", style="row", markers=markers, dashes=False, ax=panel)
    paper = data[data["paper"].notna()]
    panel.scatter(paper["at"], paper["paper"], label="paper", **_PAPER)
    for row, bounded in data[data["bound"].notna()].groupby("row"):
        panel.plot(bounded["at"], bounded["bound"], "k--", linewidth=1, label=f"paper's bound of {row}")
    panel.set_xscale("log", base=2)
    ticks = sorted(data["at"].unique())
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.minorticks_off()
    if with_legend:
        panel.legend(loc="upper left", bbox_to_anchor=(1, 1), title="")
    else:
        panel.legend().remove()


def _communication(data: pd.DataFrame) -> Figure:
    figure, (panel,) = _panels(1, 7.0)
    own = data[data["metric"].isin(["total_comm_ms", "exposed_comm_ms"])]
    own = own.assign(part=own["metric"].map({"total_comm_ms": "total", "exposed_comm_ms": "exposed"}))
    sns.barplot(own, x="row", y="ours", hue="part", ax=panel)
    _mark_bars(panel, own, "row", "part")
    panel.set(xlabel="", ylabel="communication, ms of the paper's step")
    panel.legend(title="")
    return figure


def _mark_bars(panel: Axes, data: pd.DataFrame, x: str, hue: str) -> None:
    """The paper's figures on the grouped bars of seaborn, whose groups are 0.8 wide around 0, 1, ..."""
    places, hues = list(dict.fromkeys(data[x])), list(dict.fromkeys(data[hue]))
    paper = data[data["paper"].notna()]
    width = 0.8 / len(hues)
    centres = [
        places.index(place) - 0.4 + width * (hues.index(level) + 0.5)
        for place, level in zip(paper[x], paper[hue], strict=True)
    ]
    panel.scatter(centres, paper["paper"], label="paper", **_PAPER)


def _micro_batches(data: pd.DataFrame) -> Figure:
    metrics = {
        "total_comm_ms": "busy communication, ms of the paper's step",
        "exposed_share": "exposed share of it",
    }
    figure = _lines(metrics, "samples a micro-batch")(data)
    panel = figure.axes[-1]
    sizes = sorted(data["group"].astype(int).unique())
    panel.plot(sizes, [size / BATCH_SIZE for size in sizes], color="grey", linestyle=":", label="1 / N")
    panel.legend(loc="upper left", bbox_to_anchor=(1, 1), title="")
    return figure


def _sizes(data: pd.DataFrame) -> Figure:
    split = data["group"].str.rsplit("-", n=1, expand=True)
    own = data.assign(swept=split[0], at=split[1])
    own = own[own["metric"] == "exposed_comm_ms"]
    labels = {"dim": "embedding dim", "layers": "dense layers", "length": "sequence length"}
    figure, panels = _panels(len(labels), 3.6)
    for panel, (swept, label) in zip(panels, labels.items(), strict=True):
        part = own[own["swept"] == swept]
        sns.barplot(part, x="at", y="ours", hue="row", ax=panel, legend=panel is panels[-1])
        _mark_bars(panel, part, "at", "row")
        panel.set(xlabel=label, ylabel="exposed communication, ms")
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1), title="")
    return figure


_DRAWINGS: Mapping[str, Callable[[pd.DataFrame], Figure]] = {
    "table2": _breakdown,
    "table3": _lines({"qps": "QPS, 1e5 samples/s", "efficiency": "scaling efficiency"}, "workers"),
    "table4": _communication,
    "fig2": _lines(
        {"lookup_share": "lookup", "comm_share": "communication"}, "workers", "share of TorchRec's step"
    ),
    "fig7": _breakdown,
    "fig8": _lines({"utilisation": "modelled dense / step"}, "workers"),
    "fig9": _micro_batches,
    "fig10": _sizes,
    "ablation": _breakdown,
}
