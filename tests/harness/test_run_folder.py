"""What `nestpipe compare` says of damaged files of a run, and of folders that other commands have filled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.results import RESULTS_FILE
from tests.harness.sweep.test_two_folders import compare, comparisons, run, steps

DAMAGES: dict[str, dict[str, Any]] = {
    "'step_ms' is missing": {"step_ms": None},
    "'method' is missing": {"method": None},
    "'workers' is missing": {"workers": None},
    "'step_ms' cannot be '[]'": {"step_ms": []},
    "'step_ms' cannot be '7.5'": {"step_ms": 7.5},
    "'step_ms' cannot be \"[1.5, 'x']\"": {"step_ms": [1.5, "x"]},
    "'step_ms' cannot be '[1.5, nan]'": {"step_ms": [1.5, float("nan")]},
    "'step_ms' cannot be '[1.5, 0]'": {"step_ms": [1.5, 0]},
    "'workers' cannot be '2.0'": {"workers": 2.0},
}
"""Fields of the second line by what is said of them; None: taken out."""


@pytest.mark.parametrize(("message", "changes"), DAMAGES.items())
def test_a_damaged_line_of_steps_is_named(message: str, changes: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1))
    started = run(tmp_path / "b", steps(10.0, 2))
    file = tmp_path / "b" / f"steps-{started.run_id}.jsonl"
    first, second = file.read_text().splitlines()
    entry = {key: value for key, value in (json.loads(second) | changes).items() if value is not None}
    file.write_text(f"{first}\n{json.dumps(entry)}\n")
    result = compare(tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 1
    assert f"{file}:2: field {message}; remove {file.name} to go on" in result.stderr
    assert "Traceback" not in result.output
    file.unlink()
    assert [line["verdict"] for line in comparisons(tmp_path / "a", tmp_path / "b")] == ["unclear"]


def test_neither_steps_nor_their_median_is_told(tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1))
    started = run(tmp_path / "b", steps(10.0, 2))
    (tmp_path / "b" / f"steps-{started.run_id}.jsonl").unlink()
    file = tmp_path / "b" / RESULTS_FILE
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines() if "_p50" not in line))
    result = compare(tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 1
    assert f"{file}: run {started.run_id} has no step_ms_p50 of sync at 2 workers" in result.stderr


@pytest.mark.parametrize(
    ("names", "messages"),
    [
        (["cells.jsonl", "ladder.json"], ["cells.jsonl of `nestpipe sweep` (a sweep compares its own steps"]),
        (["train.jsonl"], ["train.jsonl of `nestpipe train` (`nestpipe report FOLDER...`"]),
        (["reproduce.jsonl"], ["reproduce.jsonl of `nestpipe reproduce` (`nestpipe report FOLDER`"]),
        (["claims.jsonl"], ["claims.jsonl of `nestpipe claims` (`nestpipe claims report"]),
        (["reproduce.jsonl", "train.jsonl"], ["of `nestpipe reproduce` (", " and train.jsonl of"]),
    ],
)
def test_a_folder_of_another_command_is_named(names: list[str], messages: list[str], tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1))
    (tmp_path / "b").mkdir()
    for name in names:
        (tmp_path / "b" / name).write_text("{}\n")
    result = compare(tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 1
    assert f"no results of `nestpipe run` in {tmp_path / 'b'}, but " in result.stderr
    assert all(message in result.stderr for message in messages), result.stderr
    assert "`nestpipe run ... --out FOLDER` makes" in result.stderr


def test_what_other_commands_have_left_beside_a_run_does_no_harm(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        run(folder, steps(10.0, 1))
        (folder / "train.jsonl").write_text("{}\n")
    assert [line["verdict"] for line in comparisons(tmp_path / "a", tmp_path / "b")] == ["same"]


def test_comparing_imports_no_torch() -> None:
    code = "import sys, harness.two_folders\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "torchrec", "pandas", "matplotlib"} & set(done.stdout.split())
