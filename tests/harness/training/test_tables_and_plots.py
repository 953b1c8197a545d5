"""What a person sees: numbers in tables, lines in figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from harness import paper
from harness.training.fig6_plot import paired
from harness.training.fig6_plot import save_figure as save_fig6
from harness.training.fig6_table import against_paper
from harness.training.plots import draw_curves, frame, save_curves
from harness.training.statistics import Estimate, differences, levels
from harness.training.tables import differences_table, levels_table, thousandths
from tests.harness.training.samples import METRICS, launched, series, training


def text_of(table: Table) -> str:
    console = Console(width=250)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_one_seed_has_no_standard_error() -> None:
    assert "0.2000 " in text_of(levels_table(levels(series({"a": (0.2,)})), "title"))
    assert "±" not in text_of(levels_table(levels(series({"a": (0.2,)})), "title"))
    assert "±" in text_of(levels_table(levels(series({"a": (0.2, 0.3)})), "title"))


def test_differences_are_in_thousandths() -> None:
    text = text_of(differences_table(differences(series({"a": (0.2, 0.2), "b": (0.203, 0.201)})), "title"))
    assert "+2.00 ± 1.00" in text
    assert "0.0 of 3" in text


def test_a_difference_that_rounds_to_zero_has_no_sign() -> None:
    assert thousandths(Estimate((-1e-9,))) == thousandths(Estimate((-0.0,))) == "+0.00"
    assert thousandths(Estimate((-0.0123,))) == "-12.30"


def test_workloads_without_ranks_show_metrics_alone() -> None:
    found = differences([launched(0, training("a", (0.2,)), training("b", (0.3,)))])
    text = text_of(differences_table(found, "title"))
    assert "+100.00" in text
    assert "users" not in text


def test_the_papers_figures_stand_beside_ours() -> None:
    found = differences(series({"torchrec": (0.2, 0.2), "uniemb": (0.198, 0.198), "nestpipe": (0.2, 0.2)}))
    text = text_of(against_paper(found, METRICS, paper.load("fig6")))
    assert "-2.1 [S]" in text
    assert "within 0.3 [S]" in text
    assert "-2.00 ± 0.00" in text


def test_curves_have_a_panel_a_metric_and_a_line_a_method(tmp_path: Path) -> None:
    launches = series({"a": (0.2, 0.4), "b": (0.3, 0.3)})
    figure = draw_curves(frame(launches), "title")
    assert [panel.get_ylabel() for panel in figure.axes] == ["training loss", *METRICS]
    line = figure.axes[1].get_lines()[0]
    assert line.get_xydata() == pytest.approx(_points((1, 0.1), (2, 0.3)))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    for path in save_curves(launches, "title", tmp_path, "train"):
        assert path.stat().st_size > 1000


def test_paired_differences_by_epoch() -> None:
    data = paired(frame(series({"a": (0.2, 0.4), "b": (0.201, 0.4)})), "a")
    own = data[(data["method"] == "b") & (data["metric"] == "hr@10")].set_index(["seed", "epoch"])["value"]
    assert own.to_dict() == pytest.approx({(0, 1): 0.0, (0, 2): 1.0, (1, 1): 0.0, (1, 2): 0.0})


def test_fig6_is_drawn(tmp_path: Path) -> None:
    launches = series({"torchrec": (0.2, 0.2), "uniemb": (0.19, 0.2), "nestpipe": (0.2, 0.21)})
    for path in save_fig6(launches, "torchrec", METRICS, paper.load("fig6"), "title", tmp_path):
        assert path.stat().st_size > 1000


def _points(*points: tuple[float, float]) -> object:
    import numpy as np

    return np.array(points)
