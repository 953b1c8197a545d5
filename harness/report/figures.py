"""Drawings of the report, a panel each: narrow enough for a telephone, two beside each other on a desk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

PARTS = ("dense", "communication", "lookup", "not explained")
"""What a step is made of, from the beginning of its bar to the end."""
_PART_COLOURS = (0, 1, 2, 7)
"""Places in the palette: those of the same groups in Gantt charts."""
_WIDTH = 5.2
_MARKERS = ("o", "s", "^", "v", "P", "X", "D", "<", ">", "p")
_DASHES = ("", (4, 1.5), (1, 1), (3, 1, 1, 1), (6, 2), (5, 1, 2, 1))


@contextmanager
def _panel(height: float = 3.4) -> Iterator[tuple[Figure, Axes]]:
    # A figure of its own, not pyplot's: nothing global to close.
    # A dollar in a user's name begins no formula.
    plain = mpl.rc_context({"text.parse_math": False})
    with sns.axes_style("whitegrid"), sns.color_palette("colorblind"), plain:
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure, figure.subplots()


def breakdown(data: pd.DataFrame, x_label: str, longest: float | None = None) -> Figure:
    """A bar a line of `data`, in ms: columns `method`, PARTS and `step`; `longest` ends the axis."""
    with _panel(1.3 + 0.36 * len(data)) as (figure, axes):
        colours = sns.color_palette("colorblind")
        places = np.arange(len(data))
        left = np.zeros(len(data))
        for part, colour in zip(PARTS, _PART_COLOURS, strict=True):
            # A remainder below zero is in the table; a bar cannot show it.
            widths = data[part].clip(lower=0).to_numpy()
            axes.barh(places, widths, left=left, color=colours[colour], label=part, height=0.7, linewidth=0)
            left += widths
        for place, end, step in zip(places, left, data["step"], strict=True):
            axes.annotate(
                f"{step:,.1f}", (end, place), xytext=(3, 0), textcoords="offset points", va="center", size=8
            )
        axes.set_yticks(places, list(data["method"]))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.14 * max(longest or 0.0, float(left.max()), 1e-9))
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(x_label)
        _legend_below(figure, axes)
    return figure


def scaling(data: pd.DataFrame, y_label: str, *, is_fraction: bool = False) -> Figure:
    """Columns `workers`, `value` and `method`: a line a method over the number of workers."""
    with _panel() as (figure, axes):
        _lines(axes, data, "workers", markers=True)
        axes.set_xscale("log", base=2)
        ticks = sorted(data["workers"].unique())
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set(xlabel="workers", ylabel=y_label)
        if is_fraction:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _legend_below(figure, axes)
    return figure


def curves(data: pd.DataFrame, x: str, y_label: str, errorbar: str | None = None) -> Figure:
    """Columns `x`, `value` and `method`: a line a method; dashes keep equal curves apart."""
    with _panel() as (figure, axes):
        _lines(axes, data, x, markers=data[x].nunique() < 12, errorbar=errorbar)
        axes.set(xlabel=x, ylabel=y_label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend_below(figure, axes)
    return figure


def exposed_against_total(data: pd.DataFrame, unit: str) -> Figure:
    """Columns `total`, `exposed`, `workers`, `method`: points, and the line on which nothing is hidden."""
    with _panel(4.0) as (figure, axes):
        for index, (method, own) in enumerate(data.groupby("method", sort=False)):
            ordered = own.sort_values("workers")
            marker = _MARKERS[index % len(_MARKERS)]
            axes.plot(ordered["total"], ordered["exposed"], marker=marker, markersize=6, label=method)
        end = 1.05 * float(data[["total", "exposed"]].to_numpy().max())
        axes.plot([0, end], [0, end], color="grey", linestyle=":", label="nothing hidden")
        axes.set(xlabel=f"total communication, {unit}", ylabel=f"exposed communication, {unit}")
        axes.set_xlim(0, end)
        axes.set_ylim(0, end)
        _legend_below(figure, axes)
    return figure


def trend(data: pd.DataFrame, y_label: str) -> Figure:
    """Columns `commit`, `value` and `method`: commits in the order of the rows, a line a method."""
    with _panel(3.8) as (figure, axes):
        _lines(axes, data, "commit", markers=True)
        axes.set(xlabel="", ylabel=y_label)
        axes.set_ylim(bottom=0)
        axes.tick_params(axis="x", rotation=40)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
        _legend_below(figure, axes)
    return figure


def rungs(data: pd.DataFrame) -> Figure:
    """Columns `step`, `median`, `low` and `high`: a line a step, against 1, where nothing is gained."""
    with _panel(1.1 + 0.34 * len(data)) as (figure, axes):
        places = np.arange(len(data))
        around = np.array([data["median"] - data["low"], data["high"] - data["median"]])
        axes.errorbar(data["median"], places, xerr=around, fmt="o", capsize=3)
        axes.axvline(1, color="grey", linestyle=":")
        axes.set_yticks(places, list(data["step"]))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("throughput over the first step")
    return figure


def _lines(axes: Axes, data: pd.DataFrame, x: str, *, markers: bool, errorbar: str | None = None) -> None:
    num_methods = data["method"].nunique()
    sns.lineplot(
        data,
        x=x,
        y="value",
        hue="method",
        style="method",
        dashes=_repeated(_DASHES, num_methods),
        markers=_repeated(_MARKERS, num_methods) if markers else False,
        markersize=6,
        errorbar=errorbar,
        err_kws={"alpha": 0.12} if errorbar else None,
        sort=x != "commit",
        ax=axes,
    )


def _repeated(values: Sequence[Any], number: int) -> list[Any]:
    return [values[index % len(values)] for index in range(number)]


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()
    num_columns = 4 if sum(map(len, labels[:4])) < 48 else 3 if sum(map(len, labels[:3])) < 50 else 2
    figure.legend(handles, labels, loc="outside lower center", ncols=num_columns, frameon=False, fontsize=9)
