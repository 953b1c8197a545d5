"""The commands `nestpipe reproduce` and `nestpipe ablate`; each imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from harness.announce import announce_reproduction, dry_run_option
from harness.errors import user_errors
from harness.reproduce import items
from harness.reproduce.sources import EVIDENCE
from harness.shared_options import AS_JSON
from harness.training import fig6_command

Command = Callable[..., Any]


def _shared_options(command: Command) -> Command:
    options = (
        click.option(
            "--evidence",
            type=click.Choice(EVIDENCE),
            default=EVIDENCE[0],
            show_default=True,
            help="Where step times come from: real processes with modelled durations, or the simulator.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            default=4,
            show_default=True,
            help="Real processes that stand for the cluster (emulated); fig6: that train, 2 unless given.",
        ),
        click.option(
            "--steps",
            type=click.IntRange(min=1),
            default=20,
            show_default=True,
            help="Measured steps (emulated).",
        ),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("results/reproduce"),
            show_default=True,
            help="Folder for rows, raw steps and figures.",
        ),
        click.option(
            "--figures/--no-figures",
            "with_figures",
            default=None,
            help="Whether to draw each item, which takes longer than simulating all of them.  "
            "[default: only what was emulated]",
        ),
        dry_run_option,
        AS_JSON,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("item", type=click.Choice((*items.NAMES, fig6_command.NAME)))
@_shared_options
@fig6_command.options
@click.option("--force", is_flag=True, help="fig6: overwrite the folder's fig6.json of an earlier one.")
@click.pass_context
def reproduce(
    context: click.Context,
    item: str,
    evidence: str,
    workers: int,
    steps: int,
    out: Path,
    with_figures: bool | None,
    dry_run: bool,
    as_json: bool,
    force: bool,
    **training: Any,
) -> None:
    """Measure what ITEM of the paper shows, and print it beside the paper's figures.

    Milliseconds are scaled so that modelled dense time is the paper's; an error is a signed fraction,
    measured to the nearest value that rounds to what is printed, and null where the paper has no cell or
    states a bound that holds. A cell with an asterisk is no prediction: the cluster was calibrated on it,
    or a declared constant decides it.

    "all" is every item of speed. fig6 is one of accuracy: it trains methods with several seeds on data that
    can be had (the paper's is not shipped) and compares metrics and users with synchronous TorchRec's.

    \b
    Examples:
        nestpipe reproduce table2
        nestpipe reproduce all --evidence emulated --json
        nestpipe reproduce all --evidence simulated --figures
        nestpipe reproduce fig6 --quick --dry-run
    """
    if item == fig6_command.NAME:
        if not dry_run:
            _check_fig6(out, force=force)
        fig6_command.reproduce(
            context, out, as_json=as_json, with_figures=with_figures, dry_run=dry_run, **training
        )
        return
    if force:
        raise click.UsageError(f"--force is for {fig6_command.NAME} alone, not for {item}", context)
    fig6_command.refuse_options(context, item)
    _reproduce(items.get(item), evidence, workers, steps, out, with_figures, dry_run, as_json)


@click.command()
@_shared_options
def ablate(
    evidence: str,
    workers: int,
    steps: int,
    out: Path,
    with_figures: bool | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure each of the two pipelines alone, and what it contributes.

    \b
    Example:
        nestpipe ablate --steps 30
    """
    _reproduce((items.ablation(),), evidence, workers, steps, out, with_figures, dry_run, as_json)


def _check_fig6(out: Path, *, force: bool) -> None:
    with user_errors():
        from harness.training.fig6 import check_document

        check_document(out, force=force)


def _reproduce(
    chosen: Sequence[items.Item],
    evidence: str,
    workers: int,
    steps: int,
    out: Path,
    with_figures: bool | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    # What starts workers imports torch, which a simulation does without.
    with user_errors():
        announce_reproduction(chosen, evidence, workers, steps, dry_run=dry_run)
        if dry_run:
            return
        from harness.reproduce.report import reproduce as run
        from harness.reproduce.sources import open_source

        if with_figures is None:
            with_figures = evidence == "emulated"
        source = open_source(evidence, num_workers=workers, steps=steps)
        run(chosen, source, out, as_json=as_json, with_figures=with_figures)
