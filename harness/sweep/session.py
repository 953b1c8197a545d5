"""`nestpipe sweep` from its file to the table: what is missing is measured, all of it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.job import Job
from harness.sweep.file import load
from harness.sweep.journal import CELLS_FILE, FAILED, MEASURED, Journal, open_journal, read_cells
from harness.sweep.ladder import LADDER_FILE, as_document, doubts, ladder
from harness.sweep.launched import Launcher, jobs_of, provenance
from harness.sweep.owner import OWNER_FILE, check_owner, keep_owner
from harness.sweep.plan import Cell, Sweep
from harness.sweep.run import TimeLeft, missing, run_missing
from harness.sweep.table import print_ladder, print_plan
from harness.targets import check_file

if TYPE_CHECKING:
    from harness.estimate import Estimate


@dataclass(frozen=True)
class Options:
    """How a sweep is to be run."""

    out: Path
    """Holds a folder a sweep."""
    cache_dir: Path
    num_rounds: int | None = None
    """Instead of the file's."""
    force: bool = False
    retry_failed: bool = False
    dry_run: bool = False
    as_json: bool = False


def sweep(path: Path, options: Options) -> None:
    """Measure what is missing, keep it and print the ladder; a ClickException where a cell failed."""
    plan = load(path)
    plan = replace(plan, num_rounds=options.num_rounds or plan.num_rounds)
    jobs = jobs_of(plan, options.cache_dir)
    folder = options.out / plan.name
    check_owner(folder, path, plan)
    evidence = "emulated" if next(iter(jobs.values())).is_emulated else "measured"
    with _journal(folder, options) as journal:
        pending = missing(plan, journal)
        expected = _estimates(jobs, [cell for _, cell in pending])
        left = TimeLeft(plan, journal, lambda cell: _seconds(expected, cell))
        if options.dry_run:
            print_plan(plan, [step.name for step, _ in pending])
        if pending:
            click.echo(_total(expected, [cell for _, cell in pending], left))
        if options.dry_run:
            return
        keep_owner(folder, path, plan)
        try:
            run_missing(
                plan, journal, Launcher(jobs), provenance(), left, lambda text: click.echo(text, err=True)
            )
        except KeyboardInterrupt:
            click.echo(f"\nwhat is measured is kept: `nestpipe sweep {path}` goes on from here", err=True)
            raise
        _finish(plan, journal, folder, evidence, as_json=options.as_json)


def _journal(folder: Path, options: Options) -> AbstractContextManager[Journal]:
    if options.dry_run:
        path = folder / CELLS_FILE
        rows = [] if options.force else read_cells(path)
        kept = [row for row in rows if row.status == MEASURED or not options.retry_failed]
        return nullcontext(Journal(path, kept))
    for name in (CELLS_FILE, OWNER_FILE, LADDER_FILE):
        check_file(folder / name)
    return open_journal(folder, force=options.force, retry_failed=options.retry_failed)


def _finish(plan: Sweep, journal: Journal, folder: Path, evidence: str, *, as_json: bool) -> None:
    rungs = ladder(plan, journal)
    document = as_document(plan, journal, rungs, evidence)
    saved = folder / LADDER_FILE
    part = saved.with_suffix(".part")
    part.write_text(json.dumps(document, allow_nan=False, indent=1))
    part.replace(saved)
    print_ladder(plan, rungs, evidence, [*doubts(plan, journal, rungs), f"saved: {journal.path}, {saved}"])
    if as_json:
        click.echo(json.dumps(document, allow_nan=False))
    failed = [cell for cell in document["cells"] if cell["status"] == FAILED]
    if failed:
        raise click.ClickException(
            f"{len(failed)} of {len(document['cells'])} cells failed; --retry-failed measures them again"
        )
    inexact = [rung.step for rung in rungs if rung.verdict == "not exact"]
    if inexact:
        raise click.ClickException(f"not as exact as promised: {', '.join(dict.fromkeys(inexact))}")


def _estimates(jobs: Mapping[str, Job], cells: list[Cell]) -> dict[str, Estimate]:
    """By identity; without those of which nothing can be said, which their launch will explain."""
    if not cells:
        return {}
    from harness.estimate import Estimator

    estimator = Estimator()
    found: dict[Cell, Estimate | None] = {}
    for cell in cells:
        alike = replace(cell, round=0)
        if alike not in found:
            try:
                found[alike] = estimator.run(jobs[cell.identity], [cell.workers])
            except Exception:  # whatever is wrong with it
                found[alike] = None
    known = {cell.identity: found[replace(cell, round=0)] for cell in cells}
    return {identity: estimate for identity, estimate in known.items() if estimate is not None}


def _seconds(expected: Mapping[str, Estimate], cell: Cell) -> float | None:
    return expected[cell.identity].seconds if cell.identity in expected else None


def _total(expected: Mapping[str, Estimate], cells: list[Cell], left: TimeLeft) -> str:
    from harness.estimate import Estimate

    memory_bytes = max((each.memory_bytes for each in expected.values()), default=0.0)
    return f"{len(cells)} cells to measure; {Estimate(left.seconds(cells), memory_bytes)}"
