"""The command `nestpipe map`; it imports what it needs when it runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON

AXIS_NAMES = ("comm", "lookup", "overlap", "zipf", "n", "group")


@click.command(name="map")
@click.option("--x", default="comm", show_default=True, help=f"Axis: {', '.join(AXIS_NAMES)}.")
@click.option("--y", default="lookup", show_default=True, help="The other axis.")
@click.option("--method", default="nestpipe", show_default=True, help="Whose advantage is drawn.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=1536, show_default=True, help="Simulated workers."
)
@click.option(
    "--cost",
    default="paper",
    show_default=True,
    metavar="paper|FILE",
    help="What ops cost where an axis does not say so.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/maps"),
    show_default=True,
    help="Folder for the figures.",
)
@AS_JSON
def advantage_map(x: str, y: str, method: str, workers: int, cost: str, out: Path, as_json: bool) -> None:
    """Map when a method pays: simulated speedup over the best other exact method.

    comm and lookup are relative to dense time, group is the share of the cluster that shares the tables
    (then of every method), zipf the skew of independent keys. Below 1 the method loses.

    \b
    Examples:
        nestpipe map --x comm --y lookup
        nestpipe map --x n --y zipf --method nestpipe
    """
    with user_errors():
        from harness.simulation.advantage import Scene, advantage
        from harness.simulation.advantage_plot import remarks, save_map, table_of
        from harness.simulation.cost_files import load_costs
        from harness.simulation.costs import Conditions
        from harness.tables import console_for

        found = advantage(method, x, y, Scene(load_costs(cost), Conditions(workers)))
        title = (
            f"{method} over the best other exact method, {workers} workers, cost model {cost!r} (simulated)"
        )
        table = table_of(found, title)
        console = console_for(table)
        console.print(table)
        drawn = save_map(found, title, out, f"{method}-{x}-{y}")
        for line in (*remarks(found), f"drawn: {', '.join(map(str, drawn))}"):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if as_json:
            values = {"x": found.x.values, "y": found.y.values}
            result = {"method": method, **values, "speedup": found.speedup, "best_other": found.best_other}
            click.echo(json.dumps(result, allow_nan=False))
