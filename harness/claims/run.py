"""`nestpipe claims run`: experiment after experiment, each kept as it ends."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from harness.claims.claim import EVIDENCE, Catalogue, Wanted
from harness.claims.experiments import Experiments, Options
from harness.claims.rows import ClaimRow, make_row, new_header, save
from harness.durations import duration
from harness.errors import user_errors


@dataclass
class Outcome:
    """What a series of experiments brought, complete or not."""

    rows: list[ClaimRow] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def grouped(wanted: Sequence[Wanted]) -> list[list[Wanted]]:
    """Claims that one experiment answers together, the quickest kind of evidence first."""
    groups: dict[tuple[str, str], list[Wanted]] = {}
    for each in sorted(wanted, key=lambda each: EVIDENCE.index(each.evidence)):
        groups.setdefault((each.evidence, each.claim.experiment), []).append(each)
    return list(groups.values())


def name_of(group: Sequence[Wanted]) -> str:
    """What the user reads of such claims: their experiment and kind of evidence."""
    return f"{group[0].claim.experiment} ({group[0].evidence})"


def run(catalogue: Catalogue, wanted: Sequence[Wanted], options: Options) -> Outcome:
    """Measure, judge and keep; an experiment that cannot be had is told, and the next one goes on."""
    header = new_header()
    experiments = Experiments(options)
    outcome = Outcome()
    for group in grouped(wanted):
        name = name_of(group)
        start = time.perf_counter()
        try:
            with user_errors():
                found = experiments.measure(group)
        except click.ClickException as error:
            outcome.errors.append(f"{name}: {error.message}")
            click.echo(f"{name}: {error.message}", err=True)
            continue
        seconds = time.perf_counter() - start if found.seconds is None else found.seconds
        own = [
            make_row(
                header,
                catalogue,
                each,
                found.values[each.claim.row, each.claim.column],
                settings=found.settings,
                seconds=seconds,
                peak_memory_bytes=peak_memory_bytes(),
            )
            for each in group
        ]
        save(options.folder, own)
        outcome.rows += own
        click.echo(f"{name}: {len(own)} kept after {duration(seconds)}", err=True)
    return outcome


def peak_memory_bytes() -> int:
    """Up to now, of this process or of the largest that it started and that has ended."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
