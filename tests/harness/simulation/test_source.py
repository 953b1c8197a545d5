"""The simulator as evidence: how near the paper it comes, and what it promises of its own numbers."""

from __future__ import annotations

from statistics import fmean

import pytest

from harness import paper
from harness.reproduce import items
from harness.reproduce.cells import make_cells
from harness.reproduce.measured import Run
from harness.reproduce.sources import open_source

LIMIT, MEAN_LIMIT = 0.05, 0.02


@pytest.mark.parametrize("name", ["table2", "table3", "table4"])
def test_held_out_cells_are_met(name: str) -> None:
    (item,) = items.get(name)
    source = open_source("simulated", num_workers=4, steps=20)
    cells = make_cells(item, source.measure(item.runs), paper.load(name), source.evidence)
    assert {cell.evidence for cell in cells} == {"simulated"}
    errors = {
        (cell.row, cell.column): abs(cell.relative_error)
        for cell in cells
        if cell.held_out and cell.relative_error is not None
    }
    assert len(errors) >= 4
    assert max(errors.values()) <= LIMIT, max(errors, key=lambda key: errors[key])
    assert fmean(errors.values()) <= MEAN_LIMIT


@pytest.mark.parametrize("name", [name for name in items.NAMES if name != "all"])
def test_every_item_can_be_simulated(name: str) -> None:
    (item,) = items.get(name)
    source = open_source("simulated", num_workers=4, steps=20)
    measured = source.measure(item.runs)
    assert set(measured) == set(item.runs)
    for found in measured.values():
        parts = found.lookup_ms + found.comm_ms + found.dense_ms + found.other_ms
        assert parts == pytest.approx(found.step_ms)
        assert found.real_overhead_ms == 0
        assert len(found.step_samples_ms) >= 10


def test_settings_and_overrides_count() -> None:
    def step_ms(settings: tuple[tuple[str, str], ...] = (), dense_ms: float = 500.0) -> float:
        run = Run("nestpipe", "paper-npu-1536", (("dense_ms", dense_ms),), settings)
        return open_source("simulated", num_workers=1, steps=1).measure([run])[run].step_ms

    assert step_ms((("micro_batches", "4"),)) > step_ms() > step_ms((("micro_batches", "16"),))
    assert step_ms(dense_ms=1000.0) == pytest.approx(step_ms() + 500, rel=0.01)
