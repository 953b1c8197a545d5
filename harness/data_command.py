"""The commands below `nestpipe data`; imports wait until they run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from harness.clustering_command import clustering
from harness.errors import user_errors
from harness.shared_options import AS_JSON, CACHE, DATA_SEED, DATA_SETTINGS


@click.group()
def data() -> None:
    """Get data sets that this project may not ship, and look at what their batches are like.

    \b
    Examples:
        nestpipe data fetch ml-100k
        nestpipe data stats movielens industrial
    """


@data.command()
@click.argument("name", type=click.Choice(["ml-100k"]))
@CACHE
def fetch(name: str, cache: Path | None) -> None:
    """Fetch the data set NAME into the cache, after showing its terms.

    \b
    Example:
        nestpipe data fetch ml-100k
    """
    with user_errors():
        from workloads.cache import default_cache_dir
        from workloads.fetch import ML_100K_TERMS, fetch_ml_100k

        click.echo(ML_100K_TERMS)
        click.echo(fetch_ml_100k(cache or default_cache_dir()))


@data.command()
@click.argument("workloads", metavar="WORKLOAD[:PRESET]...", nargs=-1, required=True)
@DATA_SETTINGS
@click.option(
    "--batches", type=click.IntRange(min=1), default=8, show_default=True, help="Batches to describe."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Workers that share a global batch, which is what is described; inflation is of a worker's own.",
)
@DATA_SEED
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw a figure too: folder for stats.png and stats.svg.",
)
@CACHE
@AS_JSON
def stats(
    workloads: tuple[str, ...],
    pairs: tuple[str, ...],
    batches: int,
    workers: int,
    seed: int,
    out: Path | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Describe the batches of WORKLOADs: repeated keys, skew, overlap, lengths and inflation.

    \b
    Examples:
        nestpipe data stats industrial:one-interest industrial:many-interests --out figures
        nestpipe data stats kuairand movielens --set kuairand.path=logs --set batch_size=512
    """
    with user_errors():
        from harness.data_plot import save_figure
        from harness.data_stats import describe_all, print_stats
        from workloads.cache import default_cache_dir

        described = describe_all(
            workloads,
            pairs,
            num_batches=batches,
            num_workers=workers,
            seed=seed,
            cache_dir=cache or default_cache_dir(),
        )
        print_stats(described)
        if out is not None:
            for path in save_figure(described, out):
                click.echo(f"drawn: {path}")
        if as_json:
            runs = [{"workload": name, **asdict(found)} for name, found in described.items()]
            click.echo(json.dumps({"seed": seed, "workloads": runs}, allow_nan=False))


data.add_command(clustering)
