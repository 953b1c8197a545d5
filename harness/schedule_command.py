"""The commands `nestpipe schedule show` and `nestpipe schedule export`; imports wait until they run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import user_errors
from harness.simulate_command import cuts_of, shared_options

if TYPE_CHECKING:
    from harness.simulation.gantt import Chart
    from nestpipe.trace import OpEvent

NUM_STEPS_SHOWN = 3
_PICTURES = (".svg", ".png", ".pdf")
_FORCE = click.option("--force", is_flag=True, help="Overwrite an --out file that is there already.")


@click.group()
def schedule() -> None:
    """Look at schedules: what runs when, on which lane.

    \b
    Example:
        nestpipe schedule show nestpipe --workers 1536
    """


@schedule.command()
@click.argument("method", metavar="METHOD|FILE")
@click.option("--workers", type=click.IntRange(min=1), help="Simulated.  [default: 1536, or the trace's]")
@shared_options
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A measured run to show below the prediction, from `nestpipe run --trace`; it is also what ops "
    "cost, unless --cost names a file.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Draw it too: a .svg, .png or .pdf file."
)
@_FORCE
@click.option(
    "--width", type=click.IntRange(min=20), default=100, show_default=True, help="Columns of the chart."
)
def show(
    method: str,
    workers: int | None,
    cost: str,
    micro_batches: str | None,
    trace: Path | None,
    out: Path | None,
    force: bool,
    width: int,
) -> None:
    """Show the steady-state step of METHOD as a Gantt chart.

    \b
    Examples:
        nestpipe schedule show nestpipe --workers 1536 --out step.svg
        nestpipe schedule show nestpipe --trace trace.jsonl
    """
    with user_errors():
        from rich.console import Console

        from harness.simulation.gantt import legend, render, save_chart
        from harness.targets import check_target

        if out is not None:
            if out.suffix not in _PICTURES:
                raise ValueError(f"--out must end in {', '.join(_PICTURES)}, got {str(out)!r}")
            check_target(out, force=force)
        charts = []
        if trace is not None:
            measured, traced_workers = _measured(method, trace, workers)
            workers, cost = workers or traced_workers, str(trace) if cost == "paper" else cost
            charts.append(measured)
        charts.insert(0, _predicted(method, workers or 1536, cost, micro_batches))
        console = Console(width=width + 20, highlight=False)
        for chart in charts:
            console.print(render(chart, width))
        console.print(legend())
        if out is not None:
            save_chart(charts, out)
            click.echo(f"drawn: {out}")


@schedule.command()
@click.argument("method", metavar="METHOD|FILE")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1536, show_default=True, help="Simulated workers."
)
@shared_options
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File to write, JSON."
)
@_FORCE
def export(method: str, workers: int, cost: str, micro_batches: str | None, out: Path, force: bool) -> None:
    """Write a few steady-state steps of METHOD as a trace for Perfetto or chrome://tracing.

    \b
    Example:
        nestpipe schedule export nestpipe --out nestpipe.json
    """
    with user_errors():
        from harness.simulation.chrome import save_chrome_trace
        from harness.targets import check_target

        check_target(out, force=force)
        events, last = _simulated(method, workers, cost, micro_batches)
        kept = [event for event in events if event.op.step > last - NUM_STEPS_SHOWN]
        save_chrome_trace(out, kept, f"{method}, {workers} workers (simulated)")
        click.echo(f"written: {out}, {len(kept)} ops; open it at ui.perfetto.dev or chrome://tracing")


def _simulated(method: str, workers: int, cost: str, micro_batches: str | None) -> tuple[list[OpEvent], int]:
    """The ops of a run long enough to be steady, and its last whole step."""
    from harness.simulation.cost_files import load_costs
    from harness.simulation.costs import Conditions
    from harness.simulation.methods import find
    from harness.simulation.predict import steady_events

    found = find(method, cuts_of(micro_batches))
    return steady_events(found, load_costs(cost), Conditions(workers), NUM_STEPS_SHOWN)


def _predicted(method: str, workers: int, cost: str, micro_batches: str | None) -> Chart:
    from harness.simulation.gantt import chart_of

    events, last = _simulated(method, workers, cost, micro_batches)
    return chart_of(events, last, f"{method}, {workers} workers, predicted")


def _measured(method: str, trace: Path, workers: int | None) -> tuple[Chart, int]:
    """A typical measured step of rank 0, and the workers that ran it."""
    from harness.op_trace import event_of, read_trace, typical_step
    from harness.options import nearest
    from harness.simulation.gantt import chart_of

    if not trace.is_file():
        raise ValueError(f"no trace {trace}; give its path from {Path.cwd()}")
    ops = read_trace(trace)
    names = sorted({op.method for op in ops})
    if method not in names:
        raise ValueError(f"{trace} has no method {method!r}: {nearest(method, names)}")
    counts = sorted({op.workers for op in ops if op.method == method})
    chosen = workers or counts[-1]
    if chosen not in counts:
        raise ValueError(f"{trace} has {method} at {', '.join(map(str, counts))} workers, not at {chosen}")
    own = [op for op in ops if (op.method, op.workers, op.rank) == (method, chosen, 0)]
    middle = typical_step(own)
    if middle is None:
        raise ValueError(f"{trace} has no two steps of {method} that follow each other; trace a longer run")
    chart = chart_of(map(event_of, own), middle, f"{method}, {chosen} workers, measured step {middle}")
    return chart, chosen
