"""What `nestpipe reproduce fig6` takes beside the options of the other items."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from harness.announce import announce_training
from harness.errors import user_errors

NAME = "fig6"
NUM_WORKERS = 2
_OWN = ("quick", "num_seeds", "num_epochs", "workload", "model", "pairs")
_OF_SPEED = ("evidence", "steps")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of fig6 alone."""
    for option in reversed(
        (
            click.option(
                "--quick", is_flag=True, help="fig6: 5 epochs, 3 seeds; under 15 minutes on two cores."
            ),
            click.option(
                "--seeds", "num_seeds", type=click.IntRange(min=1), help="fig6: seeds.  [default: 5]"
            ),
            click.option(
                "--epochs",
                "num_epochs",
                type=click.IntRange(min=1),
                help="fig6: passes over all users.  [default: 20]",
            ),
            click.option(
                "--workload",
                type=click.Choice(["movielens", "kuairand"]),
                default="movielens",
                show_default=True,
                help="fig6: what is trained on; kuairand needs --set path=FILE-OR-FOLDER.",
            ),
            click.option(
                "--model",
                type=click.Choice(["fuxi", "hstu"]),
                default="fuxi",
                show_default=True,
                help="fig6: the backbone; the paper has fuxi.",
            ),
            click.option(
                "--set",
                "pairs",
                metavar="KEY=VALUE",
                multiple=True,
                help="fig6: a setting of workload, model, methods or optimizers; see `nestpipe list`.",
            ),
        )
    ):
        command = option(command)
    return command


def refuse_options(context: click.Context, item: str) -> None:
    """A UsageError for an option of fig6 with another item."""
    _refuse(context, _OWN, f"is for {NAME} alone, not for {item}")


def reproduce(
    context: click.Context,
    out: Path,
    *,
    as_json: bool,
    with_figures: bool | None,
    dry_run: bool,
    quick: bool,
    num_seeds: int | None,
    num_epochs: int | None,
    workload: str,
    model: str,
    pairs: tuple[str, ...],
) -> None:
    """Train and compare; `--workers` are 2 unless given."""
    _refuse(context, _OF_SPEED, f"is not for {NAME}, which trains and is measured")
    given = context.get_parameter_source("workers") is not ParameterSource.DEFAULT
    with user_errors():
        from harness.catalog import workload_keys
        from harness.options import parse_settings
        from harness.training import fig6
        from harness.training.job import TrainingJob
        from workloads.cache import default_cache_dir

        usual = (fig6.QUICK_NUM_EPOCHS, fig6.QUICK_NUM_SEEDS) if quick else (fig6.NUM_EPOCHS, fig6.NUM_SEEDS)
        num_epochs = num_epochs or usual[0]
        job = TrainingJob(
            methods=fig6.METHODS,
            workload=workload,
            num_epochs=num_epochs,
            eval_every=1 if quick else 5,
            seed=0,
            cache_dir=default_cache_dir(),
            settings=fig6.settings_of(parse_settings((f"model={model}", *pairs), workload_keys(workload))),
            timeout_s=300.0,
        )
        accuracy = fig6.Accuracy(
            job, context.params["workers"] if given else NUM_WORKERS, num_seeds or usual[1]
        )
        jobs = (job, accuracy.exact_job)
        announce_training(jobs, (accuracy.num_workers,), accuracy.num_seeds, dry_run=dry_run)
        if dry_run:
            return
        fig6.reproduce(accuracy, out, as_json=as_json, with_figures=with_figures is not False)


def _refuse(context: click.Context, names: tuple[str, ...], why: str) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{parameter.opts[0]} {why}", context)
