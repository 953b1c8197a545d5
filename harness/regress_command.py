"""The command `nestpipe regress`; it imports what it needs when it runs."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.announce import dry_run_option
from harness.errors import user_errors
from harness.shared_options import AS_JSON, CACHE, timeout_option

if TYPE_CHECKING:
    from harness.regress.experiment import Experiment
    from harness.regress.gate import Conditions


class CouldNotTell(click.ClickException):
    """An error, as opposed to a regression."""

    exit_code = 2


@click.command()
@click.option(
    "--against",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="The reference, such as results/reference/ci.json.",
)
@click.option(
    "--times", is_flag=True, help="Also time methods, as ratios between them; minutes, not seconds."
)
@click.option("--update", is_flag=True, help="Measure, and write the reference instead of comparing with it.")
@click.option("--reason", metavar="TEXT", help="Why the reference changes; kept in it.")
@click.option(
    "--method",
    "methods",
    metavar="METHOD",
    multiple=True,
    help="With --update: a method to guard; makes a new experiment, as do the next three.",
)
@click.option("--workload", help="With --update: where the batches come from.")
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="With --update: a setting.")
@click.option("--workers", type=click.IntRange(min=1), help="With --update: real workers.")
@click.option(
    "--launches",
    type=click.IntRange(min=1),
    help="Timed launches: of an update (8), or at most of a comparison (6), which ends once it is decided.",
)
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the report as Markdown, for a pull request.",
)
@click.option("--force", is_flag=True, help="Write over a Markdown file, or a reference that is unreadable.")
@dry_run_option
@CACHE
@timeout_option()
@AS_JSON
def regress(
    against: Path,
    times: bool,
    update: bool,
    reason: str | None,
    methods: tuple[str, ...],
    workload: str | None,
    pairs: tuple[str, ...],
    workers: int | None,
    launches: int | None,
    markdown_file: Path | None,
    force: bool,
    dry_run: bool,
    cache: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Compare what a step costs with a reference; made for CI.

    Counters are exact and come from a short real run, the simulator and the compiled kernels: bytes, rows
    and collectives moved, ops a step, the most bytes in tensors, exposed time in simulation, registers. They
    must be what the reference says, on any machine. --times adds ratios of step and op times, measured in
    turns with a base method: slower or faster where a rank test (p < 0.01) and a difference of 5 % agree.

    Ends with 0 where nothing has become worse, 1 for a regression or a counter that has moved, 2 where it
    cannot be told: an inconclusive or incomparable time, a number that is gone, a wrong option or file.

    \b
    Examples:
        nestpipe regress --against results/reference/ci.json
        nestpipe regress --against results/reference/ci.json --times --markdown report.md
        nestpipe regress --against results/reference/ci.json --times --dry-run
        nestpipe regress --against results/reference/ci.json --update --reason "rows travel as bfloat16"
        nestpipe regress --against mine.json --update --times --reason first --method dbp --workload movielens
    """
    with _ends_undecided():
        is_new = bool(methods or workload or pairs or workers)
        _check_options(update, reason, is_new=is_new)
        from harness.targets import check_target

        if markdown_file is not None:
            check_target(markdown_file, force=force)
        if update:
            check_target(against, force=True)
        from harness.regress.experiment import new_experiment
        from harness.regress.gate import Conditions
        from workloads.cache import default_cache_dir

        conditions = Conditions(
            cache_dir=cache or default_cache_dir(),
            timeout_s=timeout,
            times=times,
            num_launches=launches,
            tell=lambda line: click.echo(line, err=True),
        )
        if update:
            experiment = new_experiment(methods, workload, pairs, workers) if is_new else None
            code = _update(against, reason or "", experiment, conditions, force=force, dry_run=dry_run)
        else:
            code = _compare(against, conditions, markdown_file, as_json, dry_run=dry_run)
    raise SystemExit(code)


def _compare(
    against: Path, conditions: Conditions, markdown_file: Path | None, as_json: bool, *, dry_run: bool
) -> int:
    from harness.announce import announce_gate
    from harness.regress import gate, report
    from harness.regress.findings import exit_code
    from harness.regress.reference import load

    reference = load(against)
    num_launches = gate.most_launches(reference, conditions)
    announce_gate(reference.experiment, conditions, num_launches, dry_run=dry_run)
    if dry_run:
        return 0
    findings = gate.check(reference, conditions)
    title = f"against {against}"
    report.print_report(title, reference, findings, timed=conditions.times)
    code = exit_code(findings)
    if markdown_file is not None:
        markdown_file.write_text(
            report.markdown(title, reference, findings, timed=conditions.times), encoding="utf-8"
        )
    if as_json:
        entry = {
            "schema": report.SCHEMA,
            "outcome": report.OUTCOMES[code],
            "exit_code": code,
            "reference": str(against),
            "findings": [finding.as_json() for finding in findings],
        }
        click.echo(json.dumps(entry, allow_nan=False))
    return code


def _update(
    against: Path,
    reason: str,
    experiment: Experiment | None,
    conditions: Conditions,
    *,
    force: bool,
    dry_run: bool,
) -> int:
    """Write the reference; the old one's experiment is measured again unless there is a new one."""
    from harness.announce import announce_gate
    from harness.regress import gate
    from harness.regress.experiment import Experiment
    from harness.regress.reference import load

    old = None
    if against.exists():
        try:
            old = load(against)
        except ValueError:
            if not force:
                raise
    experiment = experiment or (Experiment() if old is None else old.experiment)
    num_launches = (conditions.num_launches or gate.NUM_REFERENCE_LAUNCHES) if conditions.times else 0
    announce_gate(experiment, conditions, num_launches, dry_run=dry_run)
    if dry_run:
        return 0
    reference = gate.record(against, old, experiment, reason, conditions)
    times = "no times" if reference.times is None else f"{len(reference.times.launches)} timed launches"
    click.echo(f"wrote {against}: {len(reference.counters)} counters, {times}")
    return 0


def _check_options(update: bool, reason: str | None, *, is_new: bool) -> None:
    if update and not (reason or "").strip():
        raise click.UsageError("--update needs --reason TEXT: why the reference changes; it is kept in it")
    if reason is not None and not update:
        raise click.UsageError("--reason belongs to --update")
    if is_new and not update:
        raise click.UsageError(
            "a comparison takes its experiment from the reference: --method, --workload, --set and --workers "
            "belong to --update"
        )


@contextmanager
def _ends_undecided() -> Iterator[None]:
    """End with 2 after any error and where it is interrupted: 1 means a regression and nothing else."""
    try:
        with user_errors():
            yield
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise CouldNotTell(error.message) from None
    except click.exceptions.Exit:
        raise
    except (click.Abort, KeyboardInterrupt):
        click.echo("Aborted!", err=True)
        raise SystemExit(CouldNotTell.exit_code) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(CouldNotTell.exit_code) from None
