"""The command `nestpipe sweep`; it imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from harness.announce import dry_run_option
from harness.errors import user_errors
from harness.shared_options import AS_JSON, CACHE


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Launches of each step, interleaved.  [default: the file's]"
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/sweeps"),
    show_default=True,
    help="Folder that holds one for each sweep, by its name.",
)
@CACHE
@click.option("--retry-failed", is_flag=True, help="Measure cells again that failed before.")
@click.option("--force", is_flag=True, help="Throw away what this sweep has measured, and begin anew.")
@dry_run_option
@AS_JSON
def sweep(
    file: Path,
    rounds: int | None,
    out: Path,
    cache: Path | None,
    retry_failed: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure the steps of FILE, a ladder of changes or a grid, in interleaved rounds.

    FILE is TOML, or Python with a function sweep() that returns the same as a dict. Each [[step]] has a name
    and what differs from the step before it: method, workload, cluster, set = {key = value}, unset = [key];
    after = "name" builds on another step instead. Or one [grid] has a list of values a key. At the top:
    workers, steps, warmup, rounds, seed, check, timeout, and what all steps start from.

    A sweep that was interrupted goes on where it stopped; a step that fails is kept with its error. FILE may
    change; another one of the same name is refused.

    \b
    Example:
        cat > ladder.toml <<'END'
        workers = [2]
        method = "sync"
        set = { preset = "tiny" }
        step = [
            { name = "sync" },
            { name = "overlap", method = "dbp" },
            { name = "window", method = "nestpipe", set = { micro_batches = 4 } },
        ]
        END
        nestpipe sweep ladder.toml --dry-run
        nestpipe sweep ladder.toml
    """
    with user_errors():
        from harness.sweep.session import Options
        from harness.sweep.session import sweep as run
        from workloads.cache import default_cache_dir

        run(
            file,
            Options(
                out=out,
                cache_dir=cache or default_cache_dir(),
                num_rounds=rounds,
                force=force,
                retry_failed=retry_failed,
                dry_run=dry_run,
                as_json=as_json,
            ),
        )
