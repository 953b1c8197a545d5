"""Two folders of results side by side: what can be compared, by how much it differs, and what cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.results import RESULTS_FILE
from harness.run_folder import Steps, run_rows, slowest_steps
from harness.summary import FAILED

SCHEMA = 1
NUM_RESAMPLES = 2000
MIN_EFFECT = 0.05
_PERCENTILES = (2.5, 97.5)
FASTER, SLOWER, SAME = "faster", "slower", "same"
NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Case:
    """What was run: cases of two folders can be compared where all of this is equal."""

    workload: str
    method: str
    workers: int
    cluster: str
    evidence: str
    batch_size: int
    seed: int
    settings: str
    """As JSON with sorted keys."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Where a reader looks for it."""
        return self.workload, self.method, self.workers

    def differences(self, other: Case) -> list[str]:
        """What is not equal, as `name: own / other's`."""
        names = ("cluster", "evidence", "batch_size", "seed")
        found = [
            f"{name}: {getattr(self, name)} / {getattr(other, name)}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]
        own, others = json.loads(self.settings), json.loads(other.settings)
        keys = [key for key in {**own, **others} if own.get(key) != others.get(key)]
        return found + [f"{key}: {own.get(key, 'unset')} / {others.get(key, 'unset')}" for key in keys]


@dataclass(frozen=True, eq=False)
class Measured:
    """One case in one folder, over all runs of it."""

    step_ms: Steps
    """Of the slowest worker of each run, one run after the other; the runs' medians where steps are gone."""
    has_steps: bool
    num_runs: int
    is_exact: bool
    """Whether no run of it failed its check."""


@dataclass(frozen=True)
class Folder:
    """The results of one folder."""

    path: Path
    cases: Mapping[Case, Measured]
    run_ids: frozenset[str]
    environments: Mapping[str, tuple[str, ...]]
    """By name, such as "commit", "version of torch" or "machine's cpu": the values of all its runs."""


@dataclass(frozen=True)
class Compared:
    """One line: a case of both folders, or of one alone."""

    workload: str
    method: str
    workers: int
    a_ms: float | None
    """Median step."""
    b_ms: float | None
    a_p10_p90: tuple[float, float] | None
    b_p10_p90: tuple[float, float] | None
    ratio: float | None
    """B's median step over A's: below 1, B is faster."""
    interval: tuple[float, float] | None
    """Of the ratio, 95 %, from steps drawn anew; None where only medians are left."""
    verdict: str
    """"faster" or "slower" where the interval is on one side of 1 and the effect at least 5 %, else "same";
    "unclear" (only medians), "not exact", "not comparable", "only in A" or "only in B"."""
    reason: str = ""


def read_folder(path: Path) -> Folder:
    """What `nestpipe run --out PATH` has left there.

    ValueError where there is nothing of it, for a damaged or newer line, and where two runs have one id.
    """
    file, rows = path / RESULTS_FILE, run_rows(path)
    by_case: dict[Case, dict[str, list[dict[str, Any]]]] = {}
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        identity = tuple(row[name] for name in ("run_id", "method", "workers", "metric"))
        if identity in seen:
            raise ValueError(
                f"{file}: two runs have the id {row['run_id']}; remove the lines that were copied"
            )
        seen.add(identity)
        by_case.setdefault(_case(row), {}).setdefault(row["run_id"], []).append(row)
    return Folder(
        path=path,
        cases={case: _measured(path, case, runs) for case, runs in by_case.items()},
        run_ids=frozenset(row["run_id"] for row in rows),
        environments=_environments(rows),
    )


def compare_folders(a: Folder, b: Folder) -> list[Compared]:
    """A line a case, those of A first; ValueError where both hold the same run."""
    common = a.run_ids & b.run_ids
    if common:
        raise ValueError(
            f"{a.path} and {b.path} hold the same run, {min(common)}: compare folders of different runs"
        )
    lines = []
    shown = set(a.cases)
    for case, measured in a.cases.items():
        counterpart = _counterpart(case, b)
        if counterpart is None:
            lines.append(_line(case, measured, None, "only in A"))
            continue
        shown.add(counterpart)
        if counterpart == case:
            lines.append(_compared(case, measured, b.cases[case]))
        else:
            reason = "; ".join(case.differences(counterpart))
            lines.append(_line(case, measured, b.cases[counterpart], NOT_COMPARABLE, reason))
    lines += [_line(case, None, other, "only in B") for case, other in b.cases.items() if case not in shown]
    return lines


def environment_differences(a: Folder, b: Folder) -> dict[str, tuple[str, str]]:
    """Commits, versions and properties of the machine that differ, as A has them and as B has them."""
    names = {**a.environments, **b.environments}
    values = {name: (_joined(a, name), _joined(b, name)) for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def as_document(a: Folder, b: Folder, lines: Sequence[Compared]) -> dict[str, Any]:
    """The whole comparison for machines."""
    different = environment_differences(a, b)
    return {
        "schema": SCHEMA,
        "a": str(a.path),
        "b": str(b.path),
        "differences": {name: {"a": pair[0], "b": pair[1]} for name, pair in different.items()},
        "comparisons": [asdict(line) for line in lines],
    }


def _case(row: Mapping[str, Any]) -> Case:
    names = ("workload", "method", "workers", "cluster", "evidence", "batch_size", "seed")
    return Case(**{name: row[name] for name in names}, settings=json.dumps(row["settings"], sort_keys=True))


def _measured(path: Path, case: Case, runs: Mapping[str, list[dict[str, Any]]]) -> Measured:
    steps = [slowest_steps(path, run_id, case.method, case.workers) for run_id in runs]
    has_steps = all(len(each) for each in steps)
    if not has_steps:
        steps = [np.array([_median(path, case, run_id, rows)]) for run_id, rows in runs.items()]
    return Measured(
        step_ms=np.concatenate(steps),
        has_steps=has_steps,
        num_runs=len(runs),
        is_exact=all(row["exactness"] != FAILED for rows in runs.values() for row in rows),
    )


def _median(path: Path, case: Case, run_id: str, rows: Sequence[Mapping[str, Any]]) -> float:
    for row in rows:
        if row["metric"] == "step_ms_p50" and row["value"]:
            return float(row["value"])
    raise ValueError(
        f"{path / RESULTS_FILE}: run {run_id} has no step_ms_p50 of {case.method} at {case.workers} workers, "
        "and its raw steps are gone; remove its lines to go on"
    )


def _environments(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for row in {row["run_id"]: row for row in rows}.values():
        for name, value in _environment(row):
            found.setdefault(name, {})[value] = None
    return {name: tuple(values) for name, values in found.items()}


def _environment(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "commit", (row["commit"][:7] or "unknown") + (" with changes" if row["dirty"] else "")
    for name, version in row["versions"].items():
        yield f"version of {name}", str(version)
    for name, value in row["machine"].items():
        yield f"machine's {name}", str(value)


def _joined(folder: Folder, name: str) -> str:
    return ", ".join(folder.environments.get(name, ("absent",)))


def _counterpart(case: Case, folder: Folder) -> Case | None:
    """The folder's own case, else the one of the same workload, method and workers that differs least."""
    if case in folder.cases:
        return case
    rivals = [rival for rival in folder.cases if rival.place == case.place]
    return min(rivals, key=lambda rival: len(case.differences(rival)), default=None)


def _compared(case: Case, a: Measured, b: Measured) -> Compared:
    inexact = [name for name, measured in (("A", a), ("B", b)) if not measured.is_exact]
    if inexact:
        return _line(case, a, b, "not exact", f"failed its check in {' and '.join(inexact)}")
    ratio = float(np.median(b.step_ms) / np.median(a.step_ms))
    if not (a.has_steps and b.has_steps):
        return _line(case, a, b, "unclear", "raw steps are gone", ratio)
    interval = _interval(a.step_ms, b.step_ms)
    verdict = SAME
    if interval[1] < 1 and ratio * (1 + MIN_EFFECT) <= 1:
        verdict = FASTER
    elif interval[0] > 1 and ratio >= 1 + MIN_EFFECT:
        verdict = SLOWER
    return _line(case, a, b, verdict, "", ratio, interval)


def _interval(a: Steps, b: Steps) -> tuple[float, float]:
    """Of the ratio of medians: percentiles over resampled steps (the bootstrap), the same at every call."""
    generator = np.random.default_rng(0)
    medians = [np.median(generator.choice(steps, (NUM_RESAMPLES, len(steps))), axis=1) for steps in (a, b)]
    low, high = np.percentile(medians[1] / medians[0], _PERCENTILES)
    return float(low), float(high)


def _line(
    case: Case,
    a: Measured | None,
    b: Measured | None,
    verdict: str,
    reason: str = "",
    ratio: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Compared:
    return Compared(
        *case.place,
        a_ms=None if a is None else float(np.median(a.step_ms)),
        b_ms=None if b is None else float(np.median(b.step_ms)),
        a_p10_p90=_spread(a),
        b_p10_p90=_spread(b),
        ratio=ratio,
        interval=interval,
        verdict=verdict,
        reason=reason,
    )


def _spread(measured: Measured | None) -> tuple[float, float] | None:
    if measured is None or not measured.has_steps:
        return None
    low, high = np.percentile(measured.step_ms, [10, 90])
    return float(low), float(high)
