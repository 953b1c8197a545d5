"""The first section: which runs, on what machine, with which versions and from which commit."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.page import Section, Table
from harness.report.sources import Invocation, Results

NUM_SHOWN = 40


def section(results: Results) -> Section:
    """Runs, machines and versions."""
    invocations = results.invocations
    names = _environments(invocations)
    blocks = (_runs(invocations, names), _machines(names), _versions(names))
    kept = tuple(block for block in blocks if block.rows)
    intro = (
        "Measured: nothing but the machine. Emulated: real processes with modelled durations. "
        "Simulated: schedule and cost model, nothing run. A table or figure holds one kind and says which."
    )
    return Section("environment", "Environment", intro, kept)


Environments = dict[str, tuple[str, Invocation]]
"""By description of machine and versions: a letter, and an invocation that has it."""


def _environments(invocations: Sequence[Invocation]) -> Environments:
    found: Environments = {}
    for each in invocations:
        number = len(found)
        name = chr(ord("A") + number) if number < 26 else f"A{number}"
        found.setdefault(environment_key(each), (name, each))
    return found


def environment_key(invocation: Invocation) -> str:
    """Equal for runs whose times may be compared: the same machine with the same versions."""
    return repr((sorted(invocation["machine"].items()), sorted(invocation["versions"].items())))


def _runs(invocations: Sequence[Invocation], environments: Environments) -> Table:
    shown = list(reversed(invocations))[:NUM_SHOWN]
    notes = []
    if any(each["dirty"] for each in shown):
        notes.append("+ the checkout had changes that the commit does not hold")
    if len(shown) < len(invocations):
        notes.append(f"{len(invocations) - len(shown)} earlier runs are not listed")
    rows = tuple(
        (
            each.run_id,
            f"nestpipe {each.kind}",
            each.about,
            each["evidence"],
            each.commit,
            environments[environment_key(each)][0],
        )
        for each in shown
    )
    columns = ("run", "command", "about", "evidence", "commit", "environment")
    return Table("Runs, the latest first", columns, rows, tuple(notes), words=frozenset(columns))


def _machines(environments: Environments) -> Table:
    rows = []
    for name, each in environments.values():
        machine = each["machine"]
        memory = machine.get("memory_bytes")
        rows.append(
            (
                name,
                str(machine.get("cpu", "unknown")),
                str(machine.get("cores", "unknown")),
                f"{memory / 2**30:.1f}" if isinstance(memory, int) else "unknown",
                str(machine.get("os", "unknown")),
            )
        )
    columns = ("environment", "processor", "cores", "memory GiB", "system")
    return Table("Machines", columns, tuple(rows), words=frozenset({"environment", "processor", "system"}))


def _versions(environments: Environments) -> Table:
    packages = dict.fromkeys(name for _, each in environments.values() for name in each["versions"])
    rows = tuple(
        (name, *(str(each["versions"].get(package, "-")) for package in packages))
        for name, each in environments.values()
    )
    columns = ("environment", *packages)
    return Table("Versions", columns, rows, words=frozenset(columns))
