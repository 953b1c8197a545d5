"""The command `nestpipe verify`; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON

if TYPE_CHECKING:
    from nestpipe.verify import Proof


@click.command()
@click.argument("schedule", metavar="METHOD|FILE")
@AS_JSON
def verify(schedule: str, as_json: bool) -> None:
    """Prove how stale reads can be under a schedule, whatever its ops' durations.

    METHOD is one that runs on the engine; FILE a Python file with a function that returns a Schedule, or
    FILE:function. Lane order and dependencies alone decide. The exit code is 1 where the schedule is worse
    than it declares: stale though fresh, memory overwritten while in use, or collectives in no fixed order.

    \b
    Examples:
        nestpipe verify nestpipe
        nestpipe verify my_schedule.py --json
    """
    with user_errors():
        from harness.schedule_file import load_schedule
        from nestpipe.verify import verify as prove

        proof = prove(load_schedule(schedule))
    for line in report(proof):
        click.echo(line)
    if as_json:
        click.echo(json.dumps(as_document(proof)))
    if not proof.holds:
        raise click.exceptions.Exit(1)


def report(proof: Proof) -> Iterator[str]:
    """The proof in lines for a person."""
    yield f"{proof.schedule}: {_staleness(proof)}"
    if proof.loss:
        yield f"  an update can be lost: {proof.loss}"
    if proof.counterexample is not None:
        yield from (f"  {number}. {line}" for number, line in enumerate(proof.counterexample.life, start=1))
        yield f"  missing: {proof.counterexample.missing}"
    yield from _problems(
        "buffers", proof.buffer_hazards, "all written before they are read, and read before written anew"
    )
    yield from _problems("collectives", proof.collective_order, "in the same order on every rank")


def as_document(proof: Proof) -> dict[str, Any]:
    """The documented form of `--json`; both lists are empty where nothing is wrong."""
    example = proof.counterexample
    return {
        "schedule": proof.schedule,
        "worst_staleness": proof.worst_staleness,
        "buffer_hazards": [str(hazard) for hazard in proof.buffer_hazards],
        "collective_order": [str(hazard) for hazard in proof.collective_order],
        "counterexample": None
        if example is None
        else {"batches": list(example.batches), "life": list(example.life), "missing": example.missing},
    }


def _staleness(proof: Proof) -> str:
    steps = proof.worst_staleness
    if steps == 0:
        return "every read sees every earlier update (staleness 0)"
    if proof.loss:
        return "updates can be lost, not only seen late"
    if not proof.is_bounded:
        return f"nothing bounds how stale a read may be ({steps} steps or more)"
    known = "as declared" if steps <= proof.declared_staleness else f"declared: {proof.declared_staleness}"
    return f"a read may be {steps} step{'s' if steps > 1 else ''} stale ({known})"


def _problems(subject: str, found: tuple[Any, ...], fine: str) -> Iterator[str]:
    if not found:
        yield f"  {subject}: {fine}"
    for problem in found:
        yield f"  {subject}: {problem}"
