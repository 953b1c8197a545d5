"""The reference file: what was counted and timed, when, by whom and why; imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.machine import commit, fingerprint, versions
from harness.regress.experiment import Experiment, from_json

SCHEMA = 1


@dataclass(frozen=True)
class Counter:
    """A number that does not depend on how fast the machine is."""

    name: str
    value: float
    unit: str
    tolerance: float = 0.0
    """Largest difference that is none, as a fraction of the reference's value."""


@dataclass(frozen=True)
class TimedLaunch:
    """One launch: the base's step, and a value a round of everything else, over the base's step there."""

    base_ms: float
    steps: Mapping[str, Sequence[float]]
    """By method."""
    ops: Mapping[str, Mapping[str, Sequence[float]]]
    """By method and op: how long its lane was busy with it in a step."""


@dataclass(frozen=True)
class Times:
    """Launches on one machine with one set of versions."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    launches: tuple[TimedLaunch, ...]


@dataclass(frozen=True)
class Update:
    """Why a reference is what it is."""

    date: str
    commit: str
    dirty: bool
    reason: str
    what: str
    """"counters", "times" or both."""


@dataclass(frozen=True)
class Reference:
    """What a run is compared with."""

    experiment: Experiment
    counters: tuple[Counter, ...]
    times: Times | None
    history: tuple[Update, ...]
    """The oldest first."""


def times_here(launches: Sequence[TimedLaunch]) -> Times:
    """Launches of this machine."""
    return Times(asdict(fingerprint()), versions(), tuple(launches))


def updated(
    old: Reference | None,
    experiment: Experiment,
    counters: Sequence[Counter],
    times: Times | None,
    reason: str,
) -> Reference:
    """`old` with new counters, and new times where there are any; tolerances that it declares stay."""
    declared = {} if old is None else {counter.name: counter.tolerance for counter in old.counters}
    head, dirty = commit()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    update = Update(now, head, dirty, reason, "counters and times" if times else "counters")
    kept = _with_tolerances(counters, declared)
    if old is None:
        return Reference(experiment, kept, times, (update,))
    # Times of another experiment could not be compared with anything any more.
    old_times = old.times if old.experiment.timing == experiment.timing else None
    return Reference(experiment, kept, times or old_times, (*old.history, update))


def _with_tolerances(counters: Sequence[Counter], declared: Mapping[str, float]) -> tuple[Counter, ...]:
    """The counters with the tolerances that a reference declares for them."""
    return tuple(replace(c, tolerance=declared.get(c.name, c.tolerance)) for c in counters)


def save(path: Path, reference: Reference) -> None:
    """Write the file, one counter a line, whole or not at all."""
    counters = ",\n  ".join(json.dumps(asdict(counter), allow_nan=False) for counter in reference.counters)
    history = ",\n  ".join(json.dumps(asdict(update)) for update in reference.history)
    times = "null" if reference.times is None else json.dumps(asdict(reference.times), allow_nan=False)
    text = (
        f'{{"schema": {SCHEMA},\n"history": [\n  {history}],\n'
        f'"experiment": {json.dumps(reference.experiment.as_json(), indent=1)},\n'
        f'"counters": [\n  {counters}],\n"times": {times}}}\n'
    )
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: Path) -> Reference:
    """Read a reference; ValueError or FileNotFoundError that says what is wrong with it and the way out."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such reference; record one with --update --reason TEXT")
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path}: no complete JSON ({error}); restore the file, or record it anew with --update --force"
        ) from None
    if not isinstance(entry, dict) or not isinstance(entry.get("schema"), int):
        raise ValueError(f"{path}: no reference of `nestpipe regress`, which starts with its schema number")
    if entry["schema"] > SCHEMA:
        raise ValueError(
            f"{path}: schema {entry['schema']}, and this version reads up to {SCHEMA}: install a newer "
            "nestpipe, or record the file anew with --update --force"
        )
    try:
        return _parse(entry)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{path}: {what}; restore the file, or record it anew with --update --force"
        ) from None


def _parse(entry: Mapping[str, Any]) -> Reference:
    times = entry["times"]
    if times is not None:
        launches = tuple(_launch(launch) for launch in times["launches"])
        times = Times(dict(times["machine"]), dict(times["versions"]), launches)
    history = tuple(Update(**update) for update in entry["history"])
    if not history:
        raise ValueError("the history is empty, so that nothing says where the reference comes from")
    return Reference(
        experiment=from_json(entry["experiment"]),
        counters=tuple(_counter(counter) for counter in entry["counters"]),
        times=times,
        history=history,
    )


def _counter(entry: Mapping[str, Any]) -> Counter:
    counter = Counter(**entry)
    _require_numbers(f"counter {counter.name!r}", [counter.value, counter.tolerance])
    return counter


def _launch(entry: Mapping[str, Any]) -> TimedLaunch:
    launch = TimedLaunch(**entry)
    values = [launch.base_ms]
    for rounds in launch.steps.values():
        values += rounds
    for by_op in launch.ops.values():
        for rounds in by_op.values():
            values += rounds
    _require_numbers("a timed launch", values)
    return launch


def _require_numbers(what: str, values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{what} has {value!r} where a number belongs")
