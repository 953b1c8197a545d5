"""`nestpipe conformance`: one launch, a table of checks a method, one line of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace

import click
from rich import box
from rich.markup import escape
from rich.table import Table

from harness.conformance.job import FAILED, NOT_REACHED, PASSED, SCHEMA, ConformanceJob, Examined
from harness.conformance.worker import run_conformance
from harness.launch import LaunchError, launch_function
from harness.place import find_place
from harness.tables import console_for

_COLOURS = {PASSED: "green", FAILED: "red", NOT_REACHED: "red"}


def examine(job: ConformanceJob, num_workers: int, *, as_json: bool = False) -> None:
    """Examine, print, and fail with a ClickException for a method that does not conform."""
    job.open_workload(num_workers)
    place = find_place(os.environ)
    job = replace(job, is_one_machine=place is None or place.is_one_machine)
    try:
        examined = launch_function(run_conformance, job, num_workers)[0]
    except LaunchError as error:
        if error.traceback:
            click.echo(error.traceback.rstrip(), err=True)
        raise click.ClickException(f"the examination ended before its end: {error}") from None
    for method in examined:
        _print(method, job, num_workers)
    if as_json:
        click.echo(json.dumps(as_document(examined, job, num_workers)))
    failing = [method.method for method in examined if not method.conforms]
    if failing:
        raise click.ClickException(f"does not conform: {', '.join(failing)}")


def as_document(examined: Sequence[Examined], job: ConformanceJob, num_workers: int) -> dict[str, object]:
    """The documented form of `--json`."""
    return {
        "schema": SCHEMA,
        "workload": job.workload,
        "workers": num_workers,
        "methods": [method.as_json() for method in examined],
    }


def _print(method: Examined, job: ConformanceJob, num_workers: int) -> None:
    verdict = "conforms" if method.conforms else "does not conform"
    title = f"{method.method} {verdict}: {job.workload}, {num_workers} worker{'s' if num_workers > 1 else ''}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("check", "verdict", "found"):
        table.add_column(column, no_wrap=True)
    for finding in method.findings:
        colour = _COLOURS.get(finding.verdict, "default")
        table.add_row(finding.check, f"[{colour}]{finding.verdict}[/]", escape(finding.detail))
    console_for(table).print(table)
