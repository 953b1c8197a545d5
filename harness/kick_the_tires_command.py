"""The command `nestpipe kick-the-tires`; it imports what it needs when it runs."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/kick-the-tires"),
    show_default=True,
    help="Folder for what the commands print and leave, in a new folder a call: toy runs, no results.",
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder where fetched data is looked for.  [default: the user's cache]",
)
@AS_JSON
def kick_the_tires(out: Path, cache: Path | None, as_json: bool) -> None:
    """Try everything once: under 5 minutes on two idle cores.

    Every command at its smallest: versions, proofs, schedules, the simulator, the paper's tables as
    simulated, kernels, one run of all methods with their weights compared, a comparison of two runs, a
    ladder, one cell of the emulated cluster, the claims, an epoch of training (on MovieLens-100K where it
    was fetched), the counters of the regression gate (in a checkout), and one page of it all. The exit code
    is 1 where any of it failed.

    \b
    Example:
        nestpipe kick-the-tires
    """
    with user_errors():
        from harness.claims.stages import stages
        from harness.claims.tour import print_summary, typed, walk
        from workloads.cache import default_cache_dir

        folder = out / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"
        tour = stages(folder, cache or default_cache_dir())
        results = []
        for result in walk(tour, folder):
            results.append(result)
            click.echo(f"{result.stage.name}: {result.verdict} after {result.seconds:.1f} s", err=True)
            if result.failed is not None:
                click.echo(f"{result.tail}\n{typed(result.failed)}: {result.reason}", err=True)
    print_summary(results)
    click.echo(f"what they printed: {folder}")
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "stages": [result.as_json() for result in results]}))
    if any(result.failed is not None for result in results):
        raise click.exceptions.Exit(1)
