"""Where the bars and ticks of a Gantt chart go: along the page in percent, so that zooming only widens it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness.report.page import Timeline
from harness.simulation.gantt import Bar
from nestpipe.schedule import Lane
from nestpipe.trace import GROUP_OF

_LANE_PX, _BAR_PX, _AXIS_PX = 26, 22, 20
_USUAL_WIDTH_PX, _LETTER_PX = 1000, 6.5
_NUM_TICKS, _NUM_FINE = 8, 10


@dataclass(frozen=True)
class Tick:
    """A time on the axis."""

    at: float
    label: str
    is_fine: bool
    """Shown only when zoomed."""


@dataclass(frozen=True)
class Drawn:
    """A bar; `at`, `middle` and `width` in percent, `y` and `height` in pixels."""

    group: str
    label: str
    describes: str
    at: float
    width: float
    middle: float
    y: int
    height: int
    fits: bool
    """Whether the label fits into the bar on a page of usual width; a script looks again."""


@dataclass(frozen=True)
class Layout:
    """What the page's template draws."""

    lanes: tuple[str, ...]
    height: int
    ticks: tuple[Tick, ...]
    bars: tuple[Drawn, ...]


def layout(timeline: Timeline) -> Layout:
    """A line a lane that has bars, in the lanes' own order."""
    lanes = [lane for lane in Lane if timeline.chart.lane(lane)]
    bars = [
        _drawn(bar, row, timeline.length_ms)
        for row, lane in enumerate(lanes)
        for bar in timeline.chart.lane(lane)
    ]
    height = _LANE_PX * len(lanes) + _AXIS_PX
    return Layout(tuple(lane.value for lane in lanes), height, tuple(_ticks(timeline.length_ms)), tuple(bars))


def _drawn(bar: Bar, row: int, length_ms: float) -> Drawn:
    at, width = (round(100 * ms / length_ms, 3) for ms in (bar.begin_ms, bar.end_ms - bar.begin_ms))
    took = bar.end_ms - bar.begin_ms
    return Drawn(
        group=GROUP_OF[bar.kind],
        label=bar.label,
        describes=f"{bar.label}: {bar.begin_ms:.2f} to {bar.end_ms:.2f} ms, {took:.2f} ms",
        at=at,
        width=width,
        middle=round(at + width / 2, 3),
        y=_LANE_PX * row + 1,
        height=_BAR_PX,
        fits=width / 100 * _USUAL_WIDTH_PX > _LETTER_PX * len(bar.label),
    )


def _ticks(length_ms: float) -> Iterator[Tick]:
    """Round times, about _NUM_TICKS of them, and _NUM_FINE times as many for a closer look."""
    if length_ms <= 0:
        return
    step = _round(length_ms / _NUM_TICKS) / _NUM_FINE
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    # The first and the last would stand half outside.
    for index in range(1, math.ceil(length_ms / step)):
        label, at = f"{index * step:.{digits}f}", round(100 * index * step / length_ms, 3)
        is_fine = index % _NUM_FINE != 0
        if at < 99:
            yield Tick(at, label if is_fine else f"{index * step:g} ms", is_fine)


def _round(value: float) -> float:
    """The nearest of 1, 2, 5, 10 times a power of ten that is not below `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-9))
