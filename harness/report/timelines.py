"""Gantt charts of the steady-state step: measured where there is a trace, else as simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.emulation import profiles
from harness.op_trace import TracedOp, event_of, own_ms, typical_step
from harness.report.page import Block, Section, Table, Timeline, slug, told_apart
from harness.report.sources import REPRODUCE, Results
from harness.simulation.costs import Conditions
from harness.simulation.gantt import Chart, chart_of
from harness.simulation.methods import find, names
from harness.simulation.paper import paper_model
from harness.simulation.predict import steady_events
from nestpipe.schedule import OpKind
from nestpipe.trace import GROUP_OF

NUM_SIMULATED_STEPS = 3


def section(results: Results) -> Section | None:
    """Traced methods at their largest number of workers, else the simulated ones of a reproduction."""
    blocks: list[Block] = []
    labels = told_apart(results.traces)
    for number, (path, ops) in enumerate(results.traces.items(), start=1):
        blocks += _traced(number, labels[path], ops)
    if not blocks:
        blocks += _simulated(results)
    if not blocks:
        return None
    intro = (
        "One step, from an update to the next, a line a lane; a transfer in the queue does not run yet. "
        "Zoom with the buttons, or with the wheel and Ctrl, and scroll; an op's times show where the pointer "
        "rests."
    )
    return Section("timeline", "The steady-state step", intro, tuple(blocks))


def _traced(number: int, label: str, ops: Sequence[TracedOp]) -> Iterator[Block]:
    charts: dict[str, Chart] = {}
    for position, method in enumerate(dict.fromkeys(op.method for op in ops), start=1):
        workers = max(op.workers for op in ops if op.method == method)
        own = [op for op in ops if (op.method, op.workers, op.rank) == (method, workers, 0)]
        middle = typical_step(own)
        if middle is None:
            continue
        title = f"{method}, {workers} workers, measured step {middle} ({label})"
        # Files and methods of different names may look alike in an id; their numbers do not.
        charts[slug("trace", number, position, method)] = chart_of(map(event_of, own), middle, title)
    yield from _on_one_scale(charts)
    yield _busy(label, ops)


def _on_one_scale(charts: Mapping[str, Chart]) -> Iterator[Timeline]:
    longest = max((chart.length_ms for chart in charts.values()), default=0.0)
    for name, chart in charts.items():
        yield Timeline(name, chart, longest)


def _busy(label: str, ops: Sequence[TracedOp]) -> Table:
    """Milliseconds of a step by op, on rank 0: what each op took itself, exposed or not."""
    totals: dict[tuple[str, int], dict[str, float]] = {}
    steps: dict[tuple[str, int], set[int]] = {}
    for op, ms in own_ms([op for op in ops if op.rank == 0]):
        key = op.method, op.workers
        own = totals.setdefault(key, {})
        own[op.kind] = own.get(op.kind, 0.0) + ms
        steps.setdefault(key, set()).add(op.step)
    kinds = [kind.value for kind in OpKind if any(kind.value in own for own in totals.values())]
    rows = tuple(
        (
            method,
            str(workers),
            *(
                f"{totals[method, workers].get(kind, 0.0) / len(steps[method, workers]):.2f}"
                for kind in kinds
            ),
        )
        for method, workers in totals
    )
    caption = f"Busy ms a step by op ({label}, rank 0, means over its steps, exposed or not)"
    groups = "; ".join(
        f"{group}: {', '.join(kind for kind in kinds if GROUP_OF[OpKind(kind)] == group)}"
        for group in ("lookup", "comm", "dense")
    )
    return Table(caption, ("method", "workers", *kinds), rows, (groups,))


def _simulated(results: Results) -> Iterator[Timeline]:
    """The methods of all reproductions at the largest cluster that any of them had."""
    methods: dict[int, dict[str, None]] = {}
    for each in reversed(results.of(REPRODUCE)):
        for entry in each.steps("method", "profile", "profile_overrides", "settings"):
            is_plain = not entry["profile_overrides"] and not entry["settings"]
            if is_plain and entry["method"] in names():
                workers = profiles.get(entry["profile"]).num_workers
                methods.setdefault(workers, {})[entry["method"]] = None
    if methods:
        workers = max(methods)
        charts = {slug("simulated", method): _predicted(method, workers) for method in methods[workers]}
        yield from _on_one_scale(charts)


def _predicted(method: str, workers: int) -> Chart:
    events, last = steady_events(find(method), paper_model(), Conditions(workers), NUM_SIMULATED_STEPS)
    return chart_of(events, last, f"{method}, {workers:,} workers (simulated, ms of the paper's step)")
