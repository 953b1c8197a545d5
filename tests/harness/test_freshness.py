"""What a comparison says about freshness, in words, in JSON and at the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.freshness import Freshness, add_up
from nestpipe import schedules

LATE = """
from nestpipe import schedules

def schedule():
    return schedules.uniemb()
"""


def test_counts_of_workers_add_up() -> None:
    total = add_up([(5, 2), (7,), (1, 0, 4)], schedules.uniemb())
    assert total == Freshness((13, 2, 4), proven=1)
    assert total.max_staleness == 2
    assert total.as_json() == {"max_staleness": 2, "rows_by_staleness": [13, 2, 4]}


def test_nothing_counted_is_nothing_said() -> None:
    assert add_up([None, None], schedules.dbp()) is None
    assert add_up([(3,)], None) is None


@pytest.mark.parametrize(
    ("freshness", "note"),
    [
        (Freshness((1234,), 0), "rows read: 1,234 current (proven: at most 0)"),
        (Freshness((9, 2), 1), "rows read: 9 current, 2 stale by 1 (proven: at most 1)"),
        (Freshness((0, 0, 3), None), "rows read: 3 stale by 2 (proven: nothing)"),
        (
            Freshness((9, 2), 0),
            "rows read: 9 current, 2 stale by 1 (proven: at most 0, so the proof or the engine is WRONG)",
        ),
    ],
)
def test_notes(freshness: Freshness, note: str) -> None:
    assert freshness.note == note


@pytest.mark.slow
def test_run_with_a_schedule_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    command = [sys.executable, "-c", "from harness.cli import main; main()", "run", "torchrec", "nestpipe"]
    command += ["--schedule", str(tmp_path / "late.py"), "--workers", "2", "--steps", "4", "--json"]
    command += ["--check", "freshness", "--check", "exact", "--check", "bounds", "--set", "preset=tiny"]
    command += ["--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    runs = {run["method"]: run for run in json.loads(done.stdout.splitlines()[-1])["runs"]}
    assert list(runs) == ["torchrec", "nestpipe", "late"]
    assert runs["torchrec"]["freshness"] is None
    assert runs["nestpipe"]["freshness"]["max_staleness"] == 0
    assert runs["nestpipe"]["freshness"]["rows_by_staleness"][0] > 0
    late = runs["late"]["freshness"]
    assert late["max_staleness"] == 1
    assert len(late["rows_by_staleness"]) == 2
    assert runs["late"]["exactness"]["class"] == "stale by 1"
    assert "(proven: at most 1)" in done.stdout
