"""The command `nestpipe simulate`; it imports what it needs when it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from harness.errors import user_errors
from harness.options import METHOD_KEYS, parse_worker_counts
from harness.shared_options import AS_JSON

if TYPE_CHECKING:
    from harness.simulation.predict import Prediction

ALL = "all"


def shared_options(command: Any) -> Any:
    """The options of every command that simulates: what ops cost, and how windows are cut."""
    options = (
        click.option(
            "--cost",
            default="paper",
            show_default=True,
            metavar="paper|FILE",
            help="What ops cost: the paper's cluster, a .toml or .json file of costs, or a .jsonl trace.",
        ),
        click.option(
            "--micro-batches",
            metavar="N|SIZES|auto",
            help="How windows are cut: a number, or sizes such as 1,2,2,1.  [default: 8]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def cuts_of(text: str | None) -> Any:
    """What `--micro-batches` says; None where it was not given."""
    return None if text is None else METHOD_KEYS["micro_batches"]("--micro-batches", text)


@click.command()
@click.argument("methods", metavar="METHOD|FILE...", nargs=-1, required=True)
@click.option(
    "--workers", default="128,256,512,1024,1536", show_default=True, help="Worker counts, such as 128,1536."
)
@shared_options
@click.option(
    "--batch-size", type=click.IntRange(min=1), help="Samples a worker.  [default: the cost model's]"
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=12, show_default=True, help="Steps after filling."
)
@AS_JSON
def simulate(
    methods: tuple[str, ...],
    workers: str,
    cost: str,
    micro_batches: str | None,
    batch_size: int | None,
    steps: int,
    as_json: bool,
) -> None:
    """Predict the steps of METHODs from their schedules and what ops cost; nothing runs.

    A METHOD is a name (`all`: every one), or a Python file whose function returns a Schedule. Speedups are
    against the first; efficiency is against the method's own smallest number of workers. 2D methods are
    simulated without the averaging of replicas.

    \b
    Examples:
        nestpipe simulate torchrec 2d-sp uniemb nestpipe --workers 128,1536
        nestpipe simulate sync my_schedule.py --cost costs.toml --workers 64
    """
    with user_errors():
        from harness.simulation.cost_files import load_costs
        from harness.simulation.costs import Conditions
        from harness.simulation.methods import find, names
        from harness.simulation.predict import predict

        model = load_costs(cost)
        chosen = [find(name, cuts_of(micro_batches)) for name in (names() if methods == (ALL,) else methods)]
        relative = (batch_size or model.batch_size) / model.batch_size
        steps_of = [
            predict(method, model, Conditions(num_workers, relative), steps)
            for num_workers in parse_worker_counts(workers)
            for method in chosen
        ]
        _print(steps_of, model.name, batch_size or model.batch_size)
        if as_json:
            runs = [asdict(step) | {"utilisation": step.utilisation} for step in steps_of]
            click.echo(json.dumps({"cost": model.name, "runs": runs}, allow_nan=False))


def _print(steps: list[Prediction], cost: str, batch_size: int) -> None:
    from rich import box
    from rich.table import Table

    from harness.tables import console_for

    title = f"simulated, cost model {cost!r}, {batch_size} samples a worker"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in (
        "workers",
        "step ms",
        "QPS",
        "speedup",
        "efficiency",
        "lookup ms",
        "comm ms",
        "dense ms",
        "total comm ms",
        "utilisation",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for position, step in enumerate(steps):
        base = next(other for other in steps if other.num_workers == step.num_workers)
        own = [other for other in steps if other.method == step.method]
        smallest = min(own, key=lambda other: other.num_workers)
        following = steps[min(position + 1, len(steps) - 1)]
        table.add_row(
            step.method,
            str(step.num_workers),
            f"{step.step_ms:.2f}",
            f"{1e3 * step.num_workers * batch_size / step.step_ms:,.0f}",
            f"{base.step_ms / step.step_ms:.2f}x",
            f"{smallest.step_ms / step.step_ms:.1%}",
            f"{step.lookup_ms:.2f}",
            f"{step.comm_ms:.2f}",
            f"{step.dense_ms:.2f}",
            f"{step.total_comm_ms:.2f}",
            f"{step.utilisation:.1%}",
            end_section=following.num_workers != step.num_workers,
        )
    console_for(table).print(table)
