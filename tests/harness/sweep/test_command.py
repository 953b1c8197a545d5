"""`nestpipe sweep` as a user meets it, with cells that take no time, and once for real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.sweep.journal import CELLS_FILE, Measurement, read_cells
from harness.sweep.plan import Cell
from tests.harness.sweep.fakes import fake_measure, measurement

LADDER = """
workers = [1]
rounds = 3
set = { preset = "tiny" }

[[step]]
name = "sync"
method = "sync"

[[step]]
name = "[overlap]"
method = "dbp"

[[step]]
name = "window"
method = "fwp"
"""


class FakeLauncher:
    def __init__(self, jobs: Mapping[str, Any]) -> None:
        self.jobs = jobs

    def __call__(self, cell: Cell) -> Measurement:
        assert self.jobs[cell.identity].methods == (cell.method,)
        return fake_measure(cell)


class ExactLauncher(FakeLauncher):
    def __call__(self, cell: Cell) -> Measurement:
        return measurement(3.0, "FAILED" if cell.method == "dbp" else "bitwise")


@pytest.fixture
def ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("harness.sweep.session.Launcher", FakeLauncher)
    path = tmp_path / "ladder.toml"
    path.write_text(LADDER)
    return path


def sweep(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["sweep", str(path), "--out", str(path.parent / "out"), *options])


def cells(path: Path) -> int:
    return len(read_cells(path.parent / "out" / "ladder" / CELLS_FILE))


def test_a_dry_run_says_what_is_missing_and_leaves_nothing(ladder: Path) -> None:
    result = sweep(ladder, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "[overlap]" in result.output
    assert "3 of 3" in result.output
    assert "9 cells to measure; estimate: about" in result.output
    assert not (ladder.parent / "out").exists()


def test_measured_once_shown_always_and_anew_by_force(ladder: Path) -> None:
    first = sweep(ladder, "--json")
    assert first.exit_code == 1  # the step that fails on Tuesdays
    assert "1 of 9 cells failed; --retry-failed" in first.stderr
    assert "[1/9] sync, 1 worker, round 1 of 3; about" in first.stderr
    document = json.loads(first.stdout.splitlines()[-1])
    assert document == json.loads((ladder.parent / "out" / "ladder" / "ladder.json").read_text())
    assert document["schema"] == 1
    assert [rung["verdict"] for rung in document["rungs"]] == ["first", "faster", "partly failed"]
    assert "1.250x" in first.stdout
    again = sweep(ladder, "--json")
    assert "[1/9]" not in again.stderr
    assert "cells to measure" not in again.stdout
    assert json.loads(again.stdout.splitlines()[-1]) == document
    dry = sweep(ladder, "--dry-run", "--retry-failed")
    assert "1 cells to measure" in dry.stdout
    retried = sweep(ladder, "--retry-failed")
    assert "[9/9] window, 1 worker, round 2 of 3" in retried.stderr
    assert cells(ladder) == 9
    more = sweep(ladder, "--rounds", "4")
    assert more.stderr.count("round 4 of 4") == 3
    assert cells(ladder) == 12
    assert "[1/9]" in sweep(ladder, "--force").stderr
    assert cells(ladder) == 9


def test_a_broken_promise_fails_the_sweep(ladder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.sweep.session.Launcher", ExactLauncher)
    result = sweep(ladder)
    assert result.exit_code == 1
    assert "not as exact as promised: [overlap]" in result.stderr


def test_what_was_interrupted_is_kept(ladder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(FakeLauncher):
        def __call__(self, cell: Cell) -> Measurement:
            if cell.round:
                raise KeyboardInterrupt
            return super().__call__(cell)

    monkeypatch.setattr("harness.sweep.session.Launcher", Interrupted)
    result = sweep(ladder)
    assert result.exit_code == 1
    assert "goes on from here" in result.stderr
    assert cells(ladder) == 3


def test_mistakes_get_a_message(ladder: Path) -> None:
    assert "no sweep file" in sweep(ladder.parent / "none.toml").stderr
    blocked = ladder.parent / "file"
    blocked.touch()
    result = CliRunner().invoke(main, ["sweep", str(ladder), "--out", str(blocked / "out")])
    assert result.exit_code == 1
    assert str(blocked) in result.stderr


@pytest.mark.parametrize("name", ["ladder.json", "sweep.json", "cells.jsonl"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(ladder: Path, name: str) -> None:
    folder = ladder.parent / "out" / "ladder"
    (folder / name).mkdir(parents=True)
    result = sweep(ladder)
    assert result.exit_code == 1
    assert str(folder / name) in result.stderr
    assert "use another --out" in result.stderr
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.fixture
def other(ladder: Path) -> Path:
    """A file of the same name and with other steps."""
    path = ladder.parent / "elsewhere" / ladder.name
    path.parent.mkdir()
    path.write_text(LADDER.replace('"fwp"', '"nestpipe"'))
    return path


@pytest.mark.parametrize("option", ["--json", "--dry-run", "--force", "--retry-failed"])
def test_another_sweep_of_the_same_name_is_refused(ladder: Path, other: Path, option: str) -> None:
    sweep(ladder)
    folder = ladder.parent / "out" / "ladder"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    into = ("--out", str(ladder.parent / "out"))
    result = sweep(other, *into, option)
    assert result.exit_code == 1
    assert f"{folder} holds the sweep of {ladder}, and {other} is another one" in result.stderr
    assert "use another --out" in result.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    # Both ways out that it names.
    assert "9 cells to measure" in sweep(other, "--dry-run").stdout
    other.write_text('name = "other"\n' + other.read_text())
    assert "9 cells to measure" in sweep(other, *into, "--dry-run").stdout


def test_a_plan_may_change_where_it_is_and_move_as_it_is(ladder: Path, other: Path) -> None:
    sweep(ladder)
    changed = other.read_text()
    ladder.write_text(changed)
    more = sweep(ladder)
    assert more.stderr.count("window, 1 worker") == 3
    assert "3 cells in" in more.stdout
    into = ("--out", str(ladder.parent / "out"))
    moved = sweep(other, *into, "--rounds", "4")
    assert moved.exit_code == 0, moved.output
    assert moved.stderr.count("round 4 of 4") == 3
    # It is the other file's now.
    ladder.write_text(LADDER)
    assert f"holds the sweep of {other}" in sweep(ladder).stderr


def test_a_name_that_nothing_was_measured_under_is_free(
    ladder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(FakeLauncher):
        def __call__(self, cell: Cell) -> Measurement:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("harness.sweep.session.Launcher", Interrupted)
        sweep(ladder)
    result = sweep(other, "--out", str(ladder.parent / "out"))
    assert result.exit_code == 0, result.output
    (ladder.parent / "out" / "ladder" / "sweep.json").write_text("{")
    assert "sweep.json: cut short or damaged; remove it" in sweep(ladder).stderr


@pytest.mark.slow
def test_real_launches(tmp_path: Path) -> None:
    path = tmp_path / "real.toml"
    path.write_text(
        'steps = 3\nwarmup = 1\nrounds = 1\nset = { preset = "tiny" }\ncheck = true\n'
        '[[step]]\nname = "a"\nmethod = "dbp"\n'
        '[[step]]\nname = "b"\nworkload = "kuairand"\nset = { path = "/no/such" }\nunset = ["preset"]\n'
    )
    command = [sys.executable, "-c", "from harness.cli import main; main()", "sweep", str(path), "--json"]
    command += ["--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    rungs = json.loads(done.stdout.splitlines()[-1])["rungs"]
    assert [rung["verdict"] for rung in rungs] == ["first", "failed"]
    assert rungs[0]["exactness"] == "bitwise"
    assert rungs[0]["step_ms"]["median"] > 0
    assert "/no/such" in rungs[1]["error"]
    assert all(line.startswith(("[", "Error: ")) for line in done.stderr.splitlines())
