"""Gantt charts: bars where their times put them, labels where there is room."""

from __future__ import annotations

import pytest

from harness.report.layout import layout
from harness.report.page import Timeline
from harness.simulation.gantt import Bar, Chart
from nestpipe.schedule import Lane, OpKind

BARS = (
    Bar(OpKind.COMPUTE, Lane.COMPUTE, "compute 0", 5.0, 15.0),
    Bar(OpKind.EXCHANGE, Lane.COMM, "exchange 1", 0.0, 5.0),
    Bar(OpKind.REDUCE, Lane.COMM, "reduce 0", 15.0, 15.01),
)


def test_bars_are_percentages_of_the_longest_chart() -> None:
    drawn = layout(Timeline("step", Chart("a step", 20.0, BARS), length_ms=40.0))
    assert drawn.lanes == ("comm", "compute")
    exchange, reduce, compute = drawn.bars
    assert (exchange.at, exchange.width, exchange.y) == (0.0, 12.5, 1)
    assert (compute.at, compute.width, compute.middle) == (12.5, 25.0, 25.0)
    assert compute.y > exchange.y + exchange.height
    assert (exchange.group, compute.group) == ("comm", "dense")
    assert compute.describes == "compute 0: 5.00 to 15.00 ms, 10.00 ms"
    assert compute.fits
    assert not reduce.fits


@pytest.mark.parametrize(
    ("length_ms", "labels"),
    [
        (40.0, [f"{ms} ms" for ms in (5, 10, 15, 20, 25, 30, 35)]),
        (1911.0, [f"{ms} ms" for ms in (500, 1000, 1500)]),
        (0.3, ["0.05 ms", "0.1 ms", "0.15 ms", "0.2 ms", "0.25 ms"]),
        (0.0, []),
    ],
)
def test_ticks_are_round_times(length_ms: float, labels: list[str]) -> None:
    drawn = layout(Timeline("step", Chart("a step", length_ms, ()), length_ms))
    coarse = [tick for tick in drawn.ticks if not tick.is_fine]
    assert [tick.label for tick in coarse] == labels
    for tick in coarse:
        assert tick.at == pytest.approx(100 * float(tick.label.removesuffix(" ms")) / length_ms, abs=1e-2)
    assert len(drawn.ticks) >= 9 * len(coarse)
