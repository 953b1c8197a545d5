"""The commands `nestpipe claims list|run|report`; each imports what it needs when it runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON, CACHE

_KINDS = ("proved", "simulated", "emulated", "measured")
_ALL = "all"
_FOLDER = Path("results/claims")
_REFERENCE = Path("results/reference")

_IDS = click.argument("ids", metavar="[ID]...", nargs=-1)
_EVIDENCE = click.option(
    "--evidence",
    "kinds",
    type=click.Choice((*_KINDS, _ALL)),
    multiple=True,
    help="Kind of evidence; can be given several times.",
)


@click.group()
def claims() -> None:
    """Every claim of the paper, and whether it holds here.

    Kinds of evidence are never mixed. proved: for any durations of the ops. simulated: schedules and a cost
    model. emulated: real processes with modelled durations. measured: nothing modelled. Where none of them
    can decide, a claim is not testable here, and the closest evidence is shown beside the paper's figure.

    \b
    Example:
        nestpipe claims run && nestpipe claims report
    """


@claims.command("list")
@_IDS
@_EVIDENCE
@AS_JSON
def list_claims(ids: tuple[str, ...], kinds: tuple[str, ...], as_json: bool) -> None:
    """List the claims with their figures, what can test them, and what that takes.

    ID is a claim's name or a pattern, such as 'speedup-*'; without one, all are listed.

    \b
    Examples:
        nestpipe claims list
        nestpipe claims list 'speedup-nestpipe-*' --evidence emulated
    """
    with user_errors():
        from harness.claims.claim import EVIDENCE, load
        from harness.claims.report import as_document, lines_of
        from harness.claims.tables import print_claims

        catalogue = load()
        wanted = catalogue.choose(ids, _chosen(kinds) or EVIDENCE)
        print_claims(catalogue, wanted)
        if as_json:
            known = {(each.claim.id, each.evidence) for each in wanted}
            lines = [line for line in lines_of(catalogue, {}) if (line.claim.id, line.evidence) in known]
            click.echo(json.dumps({"claims": as_document(lines)["claims"]}, allow_nan=False))


@claims.command()
@_IDS
@_EVIDENCE
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Real processes that stand for the cluster (emulated).",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Measured steps (emulated).",
)
@click.option(
    "--from",
    "recorded",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Measure nothing: judge what `nestpipe reproduce` has left in this folder.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=_FOLDER,
    show_default=True,
    help="Folder that results are appended to.",
)
@CACHE
@click.option("--dry-run", is_flag=True, help="Say what would run and what it takes, and end.")
@AS_JSON
def run(
    ids: tuple[str, ...],
    kinds: tuple[str, ...],
    workers: int,
    steps: int,
    recorded: Path | None,
    out: Path,
    cache: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put claims to the test, and keep the verdicts.

    ID is a claim's name or a pattern, such as 'speedup-*'. Without --evidence, what takes seconds is run:
    proved and simulated; where IDs are given, every kind that they have. A claim that fails is a result: the
    exit code is 1 only where an experiment could not be run.

    \b
    Examples:
        nestpipe claims run
        nestpipe claims run speedup-nestpipe-1536 --evidence emulated --workers 2 --steps 6
        nestpipe claims run --evidence emulated --from results/reproduce
    """
    with user_errors():
        from harness.claims.claim import EVIDENCE, QUICK, load
        from harness.claims.estimate import estimate
        from harness.claims.experiments import Options
        from harness.claims.recorded import rows_from
        from harness.claims.report import as_document, lines_of
        from harness.claims.rows import ROWS_FILE, save_new
        from harness.claims.run import Outcome
        from harness.claims.run import run as run_claims
        from harness.claims.tables import print_report
        from harness.targets import check_file
        from workloads.cache import default_cache_dir

        catalogue = load()
        wanted = catalogue.choose(ids, _chosen(kinds) or (EVIDENCE if ids else QUICK))
        if recorded is not None:
            outcome = Outcome(rows_from(recorded, catalogue, wanted))
            if not dry_run:
                check_file(out / ROWS_FILE)
                save_new(out, outcome.rows)
        else:
            if not dry_run:
                check_file(out / ROWS_FILE)
            for line in estimate(catalogue, wanted, workers, steps):
                click.echo(line, err=not dry_run)
            if dry_run:
                return
            outcome = run_claims(
                catalogue, wanted, Options(workers, steps, out, cache or default_cache_dir())
            )
        rows = {(row.claim, row.evidence): row for row in outcome.rows}
        lines = [line for line in lines_of(catalogue, rows) if line.row is not None]
        print_report(lines, "claims, of which none is kept" if dry_run else f"claims, kept in {out}")
        if as_json:
            click.echo(json.dumps(as_document(lines) | {"errors": outcome.errors}, allow_nan=False))
        if outcome.errors:
            raise click.ClickException(f"{len(outcome.errors)} experiments could not be run, see above")


@claims.command()
@_IDS
@_EVIDENCE
@click.option(
    "--results",
    "folders",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Where verdicts were kept; the newest counts.  [default: results/reference and results/claims]",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown instead of a table.")
@AS_JSON
def report(
    ids: tuple[str, ...], kinds: tuple[str, ...], folders: tuple[Path, ...], as_markdown: bool, as_json: bool
) -> None:
    """Show every claim with its newest verdict: holds, fails, not testable here, or not run.

    \b
    Examples:
        nestpipe claims report
        nestpipe claims report --evidence emulated --markdown > claims.md
    """
    with user_errors():
        from harness.claims.claim import EVIDENCE, load
        from harness.claims.report import as_document, lines_of, markdown
        from harness.claims.rows import latest
        from harness.claims.tables import print_report

        catalogue = load()
        wanted = {
            (each.claim.id, each.evidence) for each in catalogue.choose(ids, _chosen(kinds) or EVIDENCE)
        }
        lines = lines_of(catalogue, latest(folders or (_REFERENCE, _FOLDER), are_named=bool(folders)))
        lines = [line for line in lines if (line.claim.id, line.evidence) in wanted]
        if as_markdown:
            click.echo(markdown(lines))
        else:
            print_report(lines, "claims and their newest verdicts")
        if as_json:
            click.echo(json.dumps(as_document(lines), allow_nan=False))


def _chosen(kinds: tuple[str, ...]) -> tuple[str, ...]:
    return _KINDS if _ALL in kinds else kinds
