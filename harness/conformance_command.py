"""The command `nestpipe conformance`; it imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from harness.completion import complete_methods
from harness.errors import user_errors
from harness.shared_options import AS_JSON, CACHE, SEED, settings_option, timeout_option


@click.command()
@click.argument("methods", metavar="METHOD...", nargs=-1, required=True, shell_complete=complete_methods)
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Worker processes.")
@click.option("--workload", default="synthetic", show_default=True, help="Where the batches come from.")
@settings_option("preset=tiny unless the workload is another")
@SEED
@CACHE
@timeout_option(60)
@AS_JSON
def conformance(
    methods: tuple[str, ...],
    workers: int,
    workload: str,
    pairs: tuple[str, ...],
    seed: int,
    cache: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Check that each METHOD keeps the contract that comparisons rely on.

    That is what `progress` returns and how it ends, times that add up, the same collectives on every worker,
    the promised exactness, names of the state, evaluation and rows where they are offered, and that nothing
    is left behind. Exit code 1 where a check fails.

    \b
    Examples:
        nestpipe conformance nestpipe
        nestpipe conformance replicated --set exchange=touched --workers 3
    """
    with user_errors():
        from harness.catalog import check_methods, method_settings, workload_keys
        from harness.conformance.job import ConformanceJob
        from harness.options import parse_settings
        from workloads.cache import default_cache_dir

        check_methods(methods)
        if workload == "synthetic" and not any(pair.startswith("preset=") for pair in pairs):
            pairs = ("preset=tiny", *pairs)
        job = ConformanceJob(
            methods=methods,
            workload=workload,
            seed=seed,
            cache_dir=cache or default_cache_dir(),
            settings=parse_settings(pairs, workload_keys(workload), plugin_keys=method_settings(methods)),
            timeout_s=timeout,
        )
        from harness.conformance.report import examine

        examine(job, workers, as_json=as_json)
