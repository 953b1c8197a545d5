"""The command `nestpipe train`; it imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from harness.announce import announce_training, dry_run_option
from harness.completion import complete_methods
from harness.errors import user_errors
from harness.options import parse_worker_counts
from harness.shared_options import AS_JSON, CACHE, settings_option, timeout_option


def parse_seeds(text: str) -> tuple[int, ...]:
    """`"0,1,2"` as numbers; a ValueError for anything but distinct whole numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"seeds must be whole numbers, such as 0,1,2, got {text!r}")
    seeds = tuple(int(part) for part in parts)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from each other, got {text!r}")
    return seeds


@click.command()
@click.argument("methods", metavar="METHOD...", nargs=-1, required=True, shell_complete=complete_methods)
@click.option("--workload", default=None, help="Where the batches come from.  [default: movielens]")
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over all users or samples.  [default: 20]")
@click.option(
    "--eval-every",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Epochs from one evaluation to the next; the last epoch is always evaluated.",
)
@click.option("--workers", default="2", show_default=True, help="Worker counts, such as 1,2: own launches.")
@click.option(
    "--seeds",
    "--seed",
    default="0",
    show_default=True,
    help="Of weights and batches, such as 0,1,2: own launches.",
)
@click.option(
    "--recipe", metavar="NAME", help="Published settings by name, which --set overrides: hstu-ml-1m."
)
@settings_option()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/train"),
    show_default=True,
    help="Folder for rows (appended to), curves, and the ranks and best items of every user.",
)
@CACHE
@timeout_option(300)
@dry_run_option
@AS_JSON
def train(
    methods: tuple[str, ...],
    workload: str | None,
    epochs: int | None,
    eval_every: int,
    workers: str,
    seeds: str,
    recipe: str | None,
    pairs: tuple[str, ...],
    out: Path,
    cache: Path | None,
    timeout: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train each METHOD from equal weights on equal batches, and evaluate it on what is held out.

    Differences are against the first one. Methods train one after the other inside one launch a worker
    count and seed; what a launch brought is kept as it ends.

    \b
    Examples:
        nestpipe train nestpipe --epochs 20
        nestpipe train torchrec uniemb nestpipe --epochs 20 --eval-every 5 --seeds 0,1,2
        nestpipe train nestpipe --recipe hstu-ml-1m --set path=ml-1m --workers 1
        nestpipe train sync nestpipe --epochs 5 --set dtype=float64 --dry-run
    """
    with user_errors():
        worker_counts, numbers = parse_worker_counts(workers), parse_seeds(seeds)

        from harness.catalog import check_methods, method_settings, workload_keys
        from harness.options import parse_settings
        from harness.training.job import TrainingJob
        from harness.training.recipes import resolve
        from workloads.cache import default_cache_dir

        check_methods(methods)
        plan = resolve(recipe, workload, epochs, pairs, worker_counts)
        keys = workload_keys(plan.workload)
        settings = parse_settings(plan.pairs, keys, plugin_keys=method_settings(methods))
        job = TrainingJob(
            methods=methods,
            workload=plan.workload,
            num_epochs=plan.num_epochs,
            eval_every=eval_every,
            seed=numbers[0],
            cache_dir=cache or default_cache_dir(),
            settings=settings,
            timeout_s=timeout,
        )
        announce_training((job,), worker_counts, len(numbers), dry_run=dry_run)
        if dry_run:
            return
        from harness.training.experiment import train as run

        run(job, worker_counts, numbers, out, as_json=as_json)
