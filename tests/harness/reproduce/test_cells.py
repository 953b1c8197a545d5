"""Cells against numbers worked out by hand and against a formula that shares no code with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import paper
from harness.reproduce import items
from harness.reproduce.cells import Cell, is_held_out, make_cells
from harness.reproduce.measured import Measured, Run
from tests.harness.reproduce.formula import OVERHEAD_MS, measured

FIELDS = [
    "item",
    "row",
    "column",
    "paper",
    "ours",
    "ours_modelled",
    "relative_error",
    "mark",
    "evidence",
    "held_out",
]


def cells_of(name: str, changes: dict[Run, Measured] | None = None) -> dict[tuple[str, str], Cell]:
    """An item's cells by row and column, measured by the formula but for `changes`."""
    item = items.ablation() if name == "ablation" else items.get(name)[0]
    measurements = {run: measured(run) for run in item.runs} | (changes or {})
    cells = make_cells(item, measurements, paper.load(name), "emulated")
    return {(cell.row, cell.column): cell for cell in cells}


def test_table2_by_hand() -> None:
    # Dense 100 ms stands for the paper's 1714.99: a millisecond of ours is 17.1499 of the paper's.
    base = Measured(400, 200, 80, 110, 10, 80, 380, 100, 20, (400.0,))
    nest = Measured(125, 5, 10, 107, 3, 75, 115, 100, 10, (125.0,))
    changes = {items.plain("torchrec"): base, items.plain("nestpipe"): nest}
    cells = cells_of("table2", changes)
    step, speedup = cells["nestpipe", "step_ms"], cells["nestpipe", "speedup"]
    assert step.ours == pytest.approx(125 * 17.1499)
    assert step.ours_modelled == pytest.approx(115 * 17.1499)
    assert speedup.ours == pytest.approx(3.2)
    assert speedup.ours_modelled == pytest.approx(380 / 125)
    assert speedup.relative_error == pytest.approx((3.2 - 3.065) / 3.065)
    lookup, comm = cells["nestpipe", "lookup_ms"], cells["nestpipe", "comm_ms"]
    assert lookup.ours == pytest.approx(5 * 17.1499)
    assert lookup.ours_modelled is None
    assert comm.ours == pytest.approx(171.499)
    assert comm.relative_error == pytest.approx((171.499 - 154.235) / 154.235)


def test_table3_by_hand() -> None:
    small = Measured(110, 2, 5, 100, 3, 40, 105, 100, 5, (110.0,))
    large = replace(small, step_ms=120.0)
    changes = {items.plain("nestpipe", 128): small, items.plain("nestpipe", 1536): large}
    cells = cells_of("table3", changes)
    assert cells["nestpipe", "128:efficiency"].ours == 1.0
    assert cells["nestpipe", "128:efficiency"].reference is None
    assert cells["nestpipe", "1536:efficiency"].ours == pytest.approx(110 / 120)
    qps = cells["nestpipe", "1536:qps"]
    assert qps.ours == pytest.approx(1536 * 512 / (120 * 17.1499e-3) / 1e5)
    assert qps.ours_modelled is None


def test_the_step_is_scaled_and_the_modelled_one_lacks_the_overhead() -> None:
    cells = cells_of("table3")
    for size in items.SIZES:
        # The formula's base is the calibration, so it lies on the paper but for the overhead.
        cell = cells["torchrec", f"{size}:step_ms"]
        assert cell.reference is not None
        assert cell.ours_modelled == pytest.approx(cell.reference.value, rel=1e-4)
        assert cell.ours == pytest.approx(cell.reference.value + OVERHEAD_MS * 1714.99 / 500, rel=1e-4)


def test_a_cell_that_the_paper_lacks_is_shown_only() -> None:
    entry = cells_of("table2")["nestpipe-2d", "step_ms"].as_json()
    assert list(entry) == FIELDS
    assert entry["paper"] is entry["mark"] is entry["relative_error"] is None
    assert entry["ours"] > 0


def test_json_of_a_cell() -> None:
    entry = cells_of("table3")["uniemb", "512:speedup"].as_json()
    assert list(entry) == FIELDS
    assert (entry["item"], entry["row"], entry["column"]) == ("table3", "uniemb", "512:speedup")
    assert (entry["paper"], entry["mark"], entry["evidence"]) == (1.72, "T", "emulated")
    assert entry["held_out"] is True


@pytest.mark.parametrize(
    ("row", "metric", "held_out"),
    [
        ("torchrec", "step_ms", False),
        ("torchrec", "speedup", False),
        ("torchrec", "lookup_share", False),
        ("nestpipe", "step_ms", True),
        ("nestpipe", "comm_ms", True),
        ("nestpipe", "lookup_ms", False),
        ("uniemb", "lookup_ms", False),
        ("uniemb", "speedup", True),
        ("2d-sp", "lookup_ms", True),
        ("2d-sp", "comm_ms", False),
        ("2d-sp", "step_ms", False),
        ("2d-sp", "efficiency", False),
        ("nestpipe-2d", "total_comm_ms", False),
        ("nestpipe-2d", "qps", False),
        ("nestpipe-2d", "lookup_ms", False),
        ("torchrec-sparse-dist", "step_ms", True),
        ("dbp", "lookup_removed", False),
        ("fwp", "comm_left", True),
    ],
)
def test_what_was_calibrated_or_declared_is_not_held_out(row: str, metric: str, held_out: bool) -> None:
    assert is_held_out(row, metric) is held_out


def test_fig8_has_no_error_where_the_bound_holds() -> None:
    cells = cells_of("fig8")
    holds, fails = cells["nestpipe", "128:utilisation"], cells["nestpipe", "1536:utilisation"]
    assert holds.ours is not None
    assert holds.ours > 0.9
    assert holds.relative_error is None
    assert holds.as_json()["paper"] == 0.9
    # 500 / (500 + 8.7 + 44.0 + 4) = 0.898.
    assert fails.ours is not None
    assert fails.relative_error == pytest.approx((fails.ours - 0.9) / 0.9)


def test_fig10_shows_more_dense_work_as_more_time() -> None:
    cells = cells_of("fig10")
    short, long = (cells["nestpipe", f"length-{length}:step_ms"].ours for length in (1024, 2048))
    assert short is not None
    assert long == pytest.approx(short + 1714.99)


def test_the_ablation_says_what_each_pipeline_takes_away() -> None:
    cells = cells_of("ablation")
    assert cells["dbp", "comm_left"].ours == 1.0
    assert cells["fwp", "comm_left"].ours == pytest.approx(1 / 8)
    assert cells["fwp", "lookup_removed"].ours == 0.0
    assert cells["dbp", "lookup_removed"].ours == pytest.approx(1 - 30 / 2870.99)
    saved = {row: cells[row, "saved_ms"].ours or 0.0 for row in ("sync", "dbp", "fwp", "nestpipe")}
    assert saved["sync"] == 0.0
    assert saved["dbp"] == pytest.approx(2870.99 - 30)
    assert saved["nestpipe"] == pytest.approx(saved["dbp"] + saved["fwp"])


def test_nothing_to_divide_by_is_no_value() -> None:
    nothing = replace(measured(items.plain("sync")), lookup_ms=0.0, comm_ms=0.0)
    cells = cells_of("ablation", {items.plain("sync"): nothing})
    assert cells["dbp", "lookup_removed"].ours is None
    assert cells["dbp", "lookup_removed"].relative_error is None
    assert cells["fwp", "comm_left"].as_json()["ours"] is None
