"""The `nestpipe` command. Each command imports what it needs, so that help is there at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from harness.announce import announce_run, dry_run_option
from harness.claims_command import claims
from harness.compare_command import compare as compare_folders
from harness.completion import complete_methods
from harness.conformance_command import conformance
from harness.data_command import data
from harness.doctor_command import doctor
from harness.errors import user_errors
from harness.kernels_command import kernels
from harness.kick_the_tires_command import kick_the_tires
from harness.map_command import advantage_map
from harness.options import parse_worker_counts
from harness.place import Program, check_place, default_worker_count, find_place
from harness.regress_command import regress
from harness.report_command import report
from harness.reproduce_command import ablate, reproduce
from harness.schedule_command import schedule
from harness.shared_options import AS_JSON, CACHE, SEED, settings_option, timeout_option
from harness.simulate_command import simulate
from harness.sweep_command import sweep
from harness.train_command import train
from harness.verify_command import verify


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nestpipe")
def main() -> None:
    """Train recommendation models with nested pipelines, and compare them with other methods.

    \b
    Example:
        nestpipe run torchrec nestpipe --workers 1,2 --check exact
    """


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str], Any]:
    def callback(context: click.Context, parameter: click.Parameter, text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


@main.command()
@click.argument("methods", metavar="METHOD...", nargs=-1, shell_complete=complete_methods)
@click.option(
    "--schedule",
    "schedule_files",
    metavar="FILE[:FUNCTION]",
    multiple=True,
    help="A schedule of your own, a Python file with a function that returns it; joins the METHODs under "
    "the file's name.",
)
@click.option("--workload", default="synthetic", show_default=True, help="Where the batches come from.")
@click.option(
    "--workers",
    default=default_worker_count,
    show_default="1, or as many as torchrun or Slurm has started",
    callback=_parsed(parse_worker_counts),
    help="Worker counts, such as 1,2,4: one launch each.",
)
@click.option("--steps", type=click.IntRange(min=1), default=30, show_default=True, help="Measured steps.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Steps before them that are dropped.",
)
@SEED
@settings_option()
@click.option(
    "--cluster",
    default="local",
    show_default=True,
    help="Emulated cluster to run on, such as paper-npu-1536; its figures can be --set. local: none.",
)
@click.option(
    "--check",
    "checks",
    type=click.Choice(["exact", "freshness", "bounds"]),
    multiple=True,
    help="exact: compare each method's parameters with those of the method it promises to equal; where a "
    "model amplifies rounding beyond that, train again in float64, or from weights moved by one ulp, to "
    "decide. freshness: count how stale the rows are that methods on the engine read. bounds: methods on the "
    "engine look at every index before kernels follow it, which costs time.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/runs"),
    show_default=True,
    help="Folder that results are appended to.",
)
@CACHE
@timeout_option()
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File (.jsonl) for every op of methods on the engine, which `nestpipe simulate --cost` reads.",
)
@click.option("--force", is_flag=True, help="Overwrite a --trace file that is there already.")
@dry_run_option
@AS_JSON
def run(
    methods: tuple[str, ...],
    schedule_files: tuple[str, ...],
    workload: str,
    workers: tuple[int, ...],
    steps: int,
    warmup: int,
    seed: int,
    pairs: tuple[str, ...],
    cluster: str,
    checks: tuple[str, ...],
    out: Path,
    cache: Path | None,
    timeout: float,
    trace: Path | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure METHODs side by side on equal batches, from equal weights.

    Speedups are against the first one. Methods take turns in rounds inside one launch a worker count.

    \b
    Examples:
        nestpipe run torchrec nestpipe --workers 1,2 --check exact
        nestpipe run torchrec 2d-sp --workers 4 --set replicas=2 --set batch_size=256
        nestpipe run torchrec nestpipe --workers 4 --cluster paper-npu-1536 --set preset=paper-ratio
        nestpipe run sync --schedule my_schedule.py --check exact --check freshness
    """
    with user_errors():
        from harness.catalog import check_methods, method_settings, workload_keys
        from harness.emulation import profiles
        from harness.job import Job
        from harness.options import parse_settings
        from harness.schedule_method import check_schedules, find_method
        from harness.targets import check_target
        from workloads.cache import default_cache_dir

        check_methods(methods)
        from_files = check_schedules(schedule_files, methods)
        cluster_keys = profiles.field_names() if profiles.get(cluster).is_modelled else []
        settings = parse_settings(pairs, workload_keys(workload), cluster_keys, method_settings(methods))
        profile = profiles.get(cluster, settings.cluster)
        check_place(find_place(os.environ), workers, is_emulated=profile.is_modelled)
        if profile.is_modelled:
            for num_workers in workers:
                profile.processes_stand_for(num_workers)
        job = Job(
            methods=(*methods, *from_files),
            workload=workload,
            num_steps=steps,
            num_warmup_steps=warmup,
            seed=seed,
            cache_dir=cache or default_cache_dir(),
            settings=settings,
            clusters=(profile,),
            check_exactness="exact" in checks,
            check_freshness="freshness" in checks,
            check_bounds="bounds" in checks,
            find_method=partial(find_method, from_files),
            timeout_s=timeout,
            keep_trace=trace is not None,
        )
        if trace is not None and not dry_run:
            check_target(trace, force=force)
        announce_run(job, workers, dry_run=dry_run)
        if dry_run:
            return
        from harness.compare import compare

        compare(job, workers, out, as_json=as_json, trace=trace)


@main.command(name="list")
def list_names() -> None:
    """List methods, workloads and models, with what can be set on them.

    \b
    Example:
        nestpipe list
    """
    from harness.listing import print_names

    print_names()


main.add_command(train)
main.add_command(regress)
main.add_command(report)
main.add_command(reproduce)
main.add_command(ablate)
main.add_command(sweep)
main.add_command(compare_folders)
main.add_command(simulate)
main.add_command(schedule)
main.add_command(advantage_map)
main.add_command(verify)
main.add_command(conformance)
main.add_command(data)
main.add_command(claims)
main.add_command(kick_the_tires)
main.add_command(kernels)
main.add_command(doctor)
