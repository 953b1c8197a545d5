"""The steady-state step as a Gantt chart: text for a terminal, a figure for a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from nestpipe.schedule import Lane, OpKind
from nestpipe.trace import GROUP_OF, OpEvent

COLOURS: Mapping[str, str] = {"lookup": "#029e73", "comm": "#de8f05", "dense": "#0173b2"}
SYMBOLS: Mapping[OpKind, str] = {
    OpKind.PREFETCH: "p",
    OpKind.H2D: "h",
    OpKind.ROUTE: "k",
    OpKind.RETRIEVE: "r",
    OpKind.SYNC: "s",
    OpKind.EXCHANGE: ">",
    OpKind.COMPUTE: "C",
    OpKind.REDUCE: "<",
    OpKind.ALLREDUCE: "a",
    OpKind.UPDATE: "u",
    OpKind.WRITE_BACK: "w",
    OpKind.AVERAGE: "v",
}


@dataclass(frozen=True)
class Bar:
    """What an op occupies, milliseconds from the beginning of the chart."""

    kind: OpKind
    lane: Lane
    label: str
    begin_ms: float
    end_ms: float


@dataclass(frozen=True)
class Chart:
    """One step, from an update to the next, with everything that runs in it."""

    title: str
    length_ms: float
    bars: tuple[Bar, ...]

    def lane(self, lane: Lane) -> list[Bar]:
        """The bars of one lane, the earliest first."""
        return sorted((bar for bar in self.bars if bar.lane is lane), key=lambda bar: bar.begin_ms)


def chart_of(events: Iterable[OpEvent], step: int, title: str) -> Chart:
    """The step that ends with `update(step)`; labels say how many steps ahead of it an op's batch is.

    ValueError where the events do not hold that update and the one before.
    """
    events = list(events)
    ends = {event.op.step: event.finished for event in events if event.op.kind is OpKind.UPDATE}
    if step not in ends or step - 1 not in ends:
        raise ValueError(f"there is no step {step} with an update before it; known updates: {_ends(ends)}")
    begin, end = ends[step - 1], ends[step]
    bars: list[Bar] = []
    link_free = begin
    for event in sorted(events, key=lambda e: (e.finished, e.started)):
        started = event.started
        if event.op.lane is Lane.COMM:  # a transfer in the queue does not run yet
            started = max(started, link_free)
            link_free = max(link_free, event.finished)
        if event.finished > begin and started < end and event.finished > started:
            span = 1e3 * (max(started, begin) - begin), 1e3 * (min(event.finished, end) - begin)
            bars.append(Bar(event.op.kind, event.op.lane, _label(event, step), *span))
    return Chart(title, 1e3 * (end - begin), tuple(bars))


def render(chart: Chart, width: int = 100) -> Text:
    """The chart as text, a line a lane: a letter where an op runs, a dot where the lane is idle."""
    text = Text(f"{chart.title}: {chart.length_ms:.2f} ms\n")
    for lane in Lane:
        bars = chart.lane(lane)
        if not bars:
            continue
        cells: list[tuple[str, str]] = [(".", "dim")] * width
        for bar in bars:
            first = min(width - 1, int(bar.begin_ms / chart.length_ms * width))
            last = max(first + 1, round(bar.end_ms / chart.length_ms * width))
            style = COLOURS[GROUP_OF[bar.kind]]
            for cell in range(first, min(last, width)):
                cells[cell] = SYMBOLS[bar.kind], style
            cells[first] = _first_symbol(bar), f"bold {style}"
        text.append(f"{lane.value:>8} ")
        for symbol, style in cells:
            text.append(symbol, style)
        text.append(f" {sum(bar.end_ms - bar.begin_ms for bar in bars) / chart.length_ms:4.0%}\n")
    return text


def legend() -> str:
    """What the letters mean."""
    letters = ", ".join(
        f"{symbol} {kind.value}" for kind, symbol in SYMBOLS.items() if kind is not OpKind.AVERAGE
    )
    return f"{letters}; an op begins with its micro-batch's last digit, a lane ends with its busy share"


def save_chart(charts: Sequence[Chart], path: Path) -> None:
    """Draw the charts below each other, on one scale, in the format of the file's ending."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(12, 0.6 + 2.6 * len(charts)), layout="constrained")
    panels = figure.subplots(len(charts), 1, squeeze=False)[:, 0]
    longest = max(chart.length_ms for chart in charts)
    for chart, axes in zip(charts, panels, strict=True):
        lanes = [lane for lane in Lane if chart.lane(lane)]
        for row, lane in enumerate(lanes):
            for bar in chart.lane(lane):
                width = bar.end_ms - bar.begin_ms
                colour = COLOURS[GROUP_OF[bar.kind]]
                axes.barh(row, width, left=bar.begin_ms, color=colour, edgecolor="white", linewidth=0.8)
                if width > 0.012 * len(bar.label) * longest:
                    middle = bar.begin_ms + width / 2
                    axes.text(middle, row, bar.label, ha="center", va="center", fontsize=7, color="white")
        axes.set_yticks(range(len(lanes)), [lane.value for lane in lanes])
        axes.invert_yaxis()
        axes.set_xlim(0, longest)
        axes.set_title(f"{chart.title}: {chart.length_ms:.2f} ms", fontsize=10, loc="left")
        axes.set_xlabel("ms since the update before")
    handles = [Patch(color=colour, label=group) for group, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside right upper")
    figure.savefig(path)


def _label(event: OpEvent, step: int) -> str:
    ahead = event.op.step - step
    when = "t" if ahead == 0 else f"t{ahead:+d}"
    m = event.op.id.micro_batch
    return f"{event.op.kind.value}({when})" if m is None else f"{event.op.kind.value} {m}"


def _first_symbol(bar: Bar) -> str:
    return bar.label[-1] if bar.label[-1].isdigit() else SYMBOLS[bar.kind]


def _ends(ends: Mapping[int, float]) -> str:
    return f"{min(ends)} to {max(ends)}" if ends else "none"
