"""The command `nestpipe doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON

if TYPE_CHECKING:
    from harness.doctor import Finding


@click.command()
@AS_JSON
def doctor(as_json: bool) -> None:
    """Say what runs on this machine, and why the rest does not.

    Packages and pins, devices, kernels, process groups and methods. The exit code is 1 where something is
    broken; what a machine simply does not have, such as a GPU, is not.

    \b
    Examples:
        nestpipe doctor
        nestpipe doctor --json
    """
    with user_errors():
        examine = _examination()
        from harness.machine import fingerprint, versions

        findings = examine()
        machine, installed = fingerprint(), versions()
        is_well = all(finding.status != "broken" for finding in findings)
        gib = machine.memory_bytes / 2**30
        click.echo(f"machine: {machine.cores} cores of {machine.cpu}, {gib:.0f} GiB, {machine.os}")
        click.echo("versions: " + ", ".join(f"{name} {text}" for name, text in installed.items()))
        for line in report(findings):
            click.echo(line)
        if as_json:
            document = {
                "is_well": is_well,
                "machine": asdict(machine),
                "versions": installed,
                "findings": [asdict(finding) for finding in findings],
            }
            click.echo(json.dumps(document))
    if not is_well:
        raise click.exceptions.Exit(1)


def _examination() -> Callable[[], list[Finding]]:
    try:
        from harness.doctor import examine
    except (ImportError, OSError) as error:  # OSError: a library that torch was built with is missing
        raise click.ClickException(f"torch cannot be imported, so nothing runs: {error}") from None
    return examine


def report(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings in lines for a person, by topic; what runs and needs no words shares a line."""
    for topic, of_topic in groupby(findings, key=lambda finding: finding.topic):
        found = list(of_topic)
        yield f"{topic}:"
        silent = [finding for finding in found if finding.status == "runs" and not finding.detail]
        if silent:
            yield f"  runs    {', '.join(finding.subject for finding in silent)}"
        for finding in found:
            if finding not in silent:
                detail = f": {finding.detail}" if finding.detail else ""
                yield f"  {finding.status:<7} {finding.subject}{detail}"
