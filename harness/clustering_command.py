"""The command `nestpipe data clustering`; imports wait until it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON, CACHE, DATA_SEED, DATA_SETTINGS


@click.command()
@click.argument("workloads", metavar="WORKLOAD[:PRESET]...", nargs=-1, required=True)
@DATA_SETTINGS
@click.option(
    "--samples",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Samples a batch, unless batch_size is set.",
)
@click.option(
    "--micro-batch",
    "micro_batches",
    type=click.IntRange(min=1),
    multiple=True,
    default=(16, 64),
    show_default=True,
    help="Samples of a micro-batch; can be given several times.",
)
@click.option("--batches", type=click.IntRange(min=5), default=50, show_default=True, help="Batches to sort.")
@click.option(
    "--negatives", is_flag=True, help="Count the negatives that sequence models sample as keys too."
)
@DATA_SEED
@CACHE
@AS_JSON
def clustering(
    workloads: tuple[str, ...],
    pairs: tuple[str, ...],
    samples: int,
    micro_batches: tuple[int, ...],
    batches: int,
    negatives: bool,
    seed: int,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Compare ways to sort the samples of WORKLOADs' batches into micro-batches.

    Each is measured by how often micro-batches ask for the same row, against random order and against a
    bound that no order can beat, and by the time it takes.

    \b
    Examples:
        nestpipe data clustering industrial:one-interest industrial:many-interests
        nestpipe data clustering movielens kuairand --set kuairand.path=logs --micro-batch 32
    """
    with user_errors():
        from harness.catalog import create_workload
        from harness.clustering.comparison import Outcome, compare
        from harness.clustering.table import REMARKS, table_of
        from harness.data_stats import sort_settings
        from harness.tables import console_for
        from workloads.cache import default_cache_dir

        outcomes: list[Outcome] = []
        for name, settings in sort_settings(workloads, pairs).items():
            own = {"batch_size": str(samples), **settings}
            workload = create_workload(
                name.partition(":")[0], own, seed, 1, cache_dir=cache or default_cache_dir()
            )
            outcomes += compare(
                name,
                workload,
                num_batches=batches,
                micro_batches=micro_batches,
                with_negatives=negatives,
            )
        table = table_of(outcomes, f"sample clustering, {batches} batches")
        console = console_for(table)
        console.print(table)
        for line in REMARKS:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if as_json:
            result = {"seed": seed, "batches": batches, "outcomes": [asdict(each) for each in outcomes]}
            click.echo(json.dumps(result, allow_nan=False))
