"""The long-form results: one row a method, worker count and metric, and every raw step beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.machine import commit, fingerprint, versions
from harness.options import Settings
from harness.summary import MethodRun, finite

if TYPE_CHECKING:
    import pandas as pd

    from harness.job import Job
    from harness.worker import WorkerReport

RESULTS_FILE = "results.jsonl"


@dataclass(frozen=True)
class Run:
    """What all rows of one invocation share."""

    run_id: str
    time: str
    workload: str
    settings: Mapping[str, Any]
    seed: int
    steps: int
    cluster: str
    """Emulated cluster; "local" where nothing was modelled."""
    evidence: str
    """"measured", or "emulated" where durations were modelled."""
    commit: str
    dirty: bool
    versions: Mapping[str, str]
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Row(Run):
    """One measured value."""

    method: str
    workers: int
    batch_size: int
    metric: str
    value: float | None
    unit: str
    exactness: str


def new_run(job: Job) -> Run:
    """The run that is about to start, with a new id that sorts by time."""
    return start_run(
        job.workload,
        job.settings,
        seed=job.seed,
        steps=job.num_steps,
        cluster=job.clusters[0].name,
        evidence="emulated" if job.is_emulated else "measured",
    )


def start_run(
    workload: str, settings: Settings, *, seed: int, steps: int, cluster: str = "local", evidence: str
) -> Run:
    """As `new_run`, for any kind of launch."""
    now = datetime.now(UTC)
    head, dirty = commit()
    return Run(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}",
        time=now.isoformat(timespec="seconds"),
        workload=workload,
        settings={
            **asdict(settings.training),
            **settings.method,
            **settings.workload,
            **settings.cluster,
        },
        seed=seed,
        steps=steps,
        cluster=cluster,
        evidence=evidence,
        commit=head,
        dirty=dirty,
        versions=versions(),
        machine=asdict(fingerprint()),
    )


def rows(run: Run, method: MethodRun) -> Iterator[Row]:
    """The rows of one method at one worker count."""
    values = [
        ("step_ms_p10", method.step_ms.p10, "ms"),
        ("step_ms_p50", method.step_ms.p50, "ms"),
        ("step_ms_p90", method.step_ms.p90, "ms"),
        ("qps", method.qps, "samples/s"),
        ("exposed_lookup_ms", method.lookup_ms, "ms"),
        ("exposed_comm_ms", method.comm_ms, "ms"),
        ("dense_ms", method.dense_ms, "ms"),
        ("other_ms", method.other_ms, "ms"),
        ("final_loss", finite(method.loss[-1]), ""),
    ]
    if method.verdict.against is not None:
        values.append(("max_difference", method.verdict.max_difference, "of the largest weight"))
    arbiter = method.verdict.arbiter
    if arbiter is not None:
        values.append((f"max_difference_{arbiter.kind}", arbiter.max_difference, "of the largest weight"))
    for metric, value, unit in values:
        yield Row(
            **vars(run),
            method=method.method,
            workers=method.workers,
            batch_size=method.batch_size,
            metric=metric,
            value=value,
            unit=unit,
            exactness=method.verdict.kind,
        )


def save(
    folder: Path, run: Run, methods: Sequence[MethodRun], reports: Sequence[WorkerReport]
) -> tuple[Path, Path]:
    """Append one launch's rows to `results.jsonl` and its raw steps to `steps-<run id>.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    results, steps = folder / RESULTS_FILE, folder / f"steps-{run.run_id}.jsonl"
    append(steps, _raw_steps(reports))
    append(results, (asdict(row) for method in methods for row in rows(run, method)))
    return results, steps


def _raw_steps(reports: Sequence[WorkerReport]) -> Iterator[dict[str, Any]]:
    for report in reports:
        for method in report.methods:
            yield {
                "method": method.method,
                "workers": len(reports),
                "rank": report.rank,
                "num_warmup_steps": report.num_warmup_steps,
                "step_ms": method.step_ms,
                "lookup_ms": method.lookup_ms,
                "comm_ms": method.comm_ms,
                "dense_ms": method.dense_ms,
                "loss": [finite(loss) for loss in method.loss],
            }


def append(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Add a line an entry, on disk before this returns."""
    with path.open("a+b") as file:
        # A line that a crash cut short must not swallow the next one.
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
            file.write(b"\n")
        for entry in entries:
            file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
            file.flush()
        os.fsync(file.fileno())


def read_results(path: Path) -> pd.DataFrame:
    """All rows of a results file, or of the `results.jsonl` in a folder, as a table with a column a field.

    ValueError with file and line for a line that is not a row.
    """
    import pandas as pd

    path = path / RESULTS_FILE if path.is_dir() else path
    names = [field.name for field in fields(Row)]
    entries = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            entries.append(_parse(line, names, f"{path}:{number}"))
    return pd.DataFrame(entries, columns=names)


def _parse(line: str, names: Sequence[str], where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not a line of JSON ({error}); remove the line to go on") from None
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: expected an object with a result's fields, got {line.strip()[:40]!r}")
    wrong = sorted(set(names) ^ set(entry))
    if wrong:
        state = "missing" if wrong[0] in names else "unknown"
        raise ValueError(f"{where}: field {wrong[0]!r} is {state}")
    return entry
