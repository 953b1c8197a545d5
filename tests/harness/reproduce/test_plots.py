"""The figures: readable files, and the paper's marks where its figures belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness import paper
from harness.reproduce import items
from harness.reproduce.cells import Cell, make_cells
from harness.reproduce.items import Item
from harness.reproduce.plots import draw, save_figure
from tests.harness.reproduce.formula import measured

EVERY = (*items.get("all"), items.ablation())


def cells_of(item: Item) -> list[Cell]:
    measurements = {run: measured(run) for run in item.runs}
    return make_cells(item, measurements, paper.load(item.name), "emulated")


def drawn(name: str) -> tuple[Figure, list[Cell]]:
    item = next(item for item in EVERY if item.name == name)
    return draw(item, cells_of(item), "title (emulated, today)"), cells_of(item)


def diamonds(panel: Axes) -> list[tuple[float, float]]:
    """Places of the paper's marks."""
    found = [item for item in panel.collections if isinstance(item, PathCollection)]
    return [(float(x), float(y)) for item in found for x, y in np.asarray(item.get_offsets())]


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.name)
def test_every_item_is_a_png_and_an_svg(item: Item, tmp_path: Path) -> None:
    png, svg = save_figure(item, cells_of(item), "title (emulated, today)", tmp_path)
    assert png.name == f"{item.name}.png"
    assert png.read_bytes().startswith(b"\x89PNG")
    assert svg.name == f"{item.name}.svg"
    assert "<svg" in svg.read_text()


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.name)
def test_every_axis_says_what_it_shows(item: Item) -> None:
    figure = draw(item, cells_of(item), "title (emulated, today)")
    assert figure.get_suptitle() == "title (emulated, today)"
    assert figure.axes[0].get_ylabel()
    if any(cell.group for cell in cells_of(item)):
        assert all(panel.get_xlabel() for panel in figure.axes)


@pytest.mark.parametrize("name", ["table4", "fig10"])
def test_the_papers_marks_stand_on_their_own_bars(name: str) -> None:
    figure, cells = drawn(name)
    wanted = {
        (cell.reference.value, round(cell.ours, 6))
        for cell in cells
        if cell.reference is not None and cell.ours is not None and cell.metric.endswith("comm_ms")
    }
    found = set()
    for panel in figure.axes:
        bars = [patch for patch in panel.patches if isinstance(patch, Rectangle)]
        for x, y in diamonds(panel):
            (bar,) = [bar for bar in bars if bar.get_x() < x < bar.get_x() + bar.get_width()]
            assert x == pytest.approx(bar.get_x() + bar.get_width() / 2)
            found.add((y, round(bar.get_height(), 6)))
    assert found == wanted


def test_the_parts_of_a_bar_are_the_step() -> None:
    figure, cells = drawn("fig7")
    for panel, size in zip(figure.axes, items.SIZES, strict=True):
        tops: dict[int, float] = {}
        for bar in panel.patches:
            assert isinstance(bar, Rectangle)
            place = round(bar.get_x() + bar.get_width() / 2)
            tops[place] = max(tops.get(place, 0.0), bar.get_y() + bar.get_height())
        steps = [cell for cell in cells if cell.column == f"{size}:step_ms"]
        assert [tops[place] for place in range(4)] == pytest.approx([cell.ours for cell in steps])
        expected = [cell.reference.value for cell in steps if cell.reference is not None]
        assert [y for _, y in diamonds(panel)] == pytest.approx(expected)
        assert [x for x, _ in diamonds(panel)] == [0, 1, 2, 3]


def test_a_bound_is_a_line_and_no_mark() -> None:
    figure, _ = drawn("fig8")
    (panel,) = figure.axes
    ((x, y),) = diamonds(panel)
    assert (x, y) == pytest.approx((1536, 0.296))
    (line,) = [line for line in panel.lines if str(line.get_label()).startswith("paper's bound")]
    assert set(line.get_ydata()) == {0.9}  # type: ignore[arg-type]
