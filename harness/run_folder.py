"""What `nestpipe run` has left in a folder, read strictly; other commands' folders are told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.claims.rows import ROWS_FILE as CLAIMS_FILE
from harness.report.lines import objects, read_rows
from harness.reproduce.rows import ROWS_FILE as REPRODUCE_FILE
from harness.results import RESULTS_FILE, Row
from harness.sweep.journal import CELLS_FILE
from harness.training.rows import ROWS_FILE as TRAIN_FILE

Steps = NDArray[np.float64]

_OTHERS: Mapping[str, tuple[str, str]] = {
    CELLS_FILE: ("sweep", "a sweep compares its own steps; started again, it prints them"),
    REPRODUCE_FILE: ("reproduce", "`nestpipe report FOLDER` shows it beside the paper's figures"),
    TRAIN_FILE: ("train", "`nestpipe report FOLDER...` shows trainings"),
    CLAIMS_FILE: ("claims", "`nestpipe claims report --results FOLDER` shows it"),
}
"""By name of the file: the command that leaves it, and what there is for it instead."""


def run_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of the folder; ValueError where there are none, and for a damaged or newer line."""
    file = path / RESULTS_FILE
    if not file.is_file():
        raise ValueError(_without_results(path))
    rows = read_rows(file, Row)
    if not rows:
        raise ValueError(f"no results in {path}: {RESULTS_FILE} is empty")
    return rows


def _without_results(path: Path) -> str:
    found = [
        f"{name} of `nestpipe {command}` ({instead})"
        for name, (command, instead) in _OTHERS.items()
        if (path / name).is_file()
    ]
    if not found:
        return f"no results in {path}: there is no {RESULTS_FILE}; `nestpipe run ... --out {path}` makes it"
    return (
        f"no results of `nestpipe run` in {path}, but {' and '.join(found)}; what is compared is a "
        f"{RESULTS_FILE}, which `nestpipe run ... --out FOLDER` makes"
    )


def slowest_steps(path: Path, run_id: str, method: str, workers: int) -> Steps:
    """Measured steps of the worker with the largest median; none where their file is gone.

    ValueError with file and line for a line that is not a worker's steps.
    """
    file = path / f"steps-{run_id}.jsonl"
    if not file.is_file():
        return np.empty(0)
    each_worker = [
        np.asarray(entry["step_ms"], dtype=np.float64)
        for entry in _step_lines(file)
        if (entry["method"], entry["workers"]) == (method, workers)
    ]
    return max(each_worker, key=np.median, default=np.empty(0))


def _step_lines(file: Path) -> Iterator[dict[str, Any]]:
    # Without one of its lines the slowest worker would be another one: the file is whole or of no use.
    way_out = f"remove {file.name} to go on"
    for where, entry in objects(file):
        for name, is_right in (("method", _is_name), ("workers", _is_count), ("step_ms", _are_durations)):
            if name not in entry:
                raise ValueError(f"{where}: field {name!r} is missing; {way_out}")
            if not is_right(entry[name]):
                raise ValueError(f"{where}: field {name!r} cannot be {str(entry[name])[:40]!r}; {way_out}")
        yield entry


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_durations(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_duration(each) for each in value)


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
