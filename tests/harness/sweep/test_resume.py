"""A sweep that is killed at any moment and started again leaves the rows of one that was not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.sweep.journal import CELLS_FILE, FAILED, open_journal, read_cells
from harness.sweep.run import missing, run_missing
from tests.harness.sweep.fakes import PROVENANCE, fake_measure, fake_sweep, no_estimate, run_fake


def content(folder: Path) -> list[dict[str, Any]]:
    """All rows in order, without when they were made and how long it took."""
    rows = [asdict(row) for row in read_cells(folder / CELLS_FILE)]
    return [{key: value for key, value in row.items() if key not in ("time", "seconds")} for row in rows]


def test_killed_at_random_moments(tmp_path: Path, repository: Path) -> None:
    num_rounds = 10
    run_fake(tmp_path / "whole", fake_sweep(num_rounds))
    num_killed = 0
    for seed in range(2):
        folder = tmp_path / f"killed-{seed}"
        command = [sys.executable, "-m", "tests.harness.sweep.fakes", str(folder), str(num_rounds), str(seed)]
        done = subprocess.run(
            command, cwd=repository, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        num_killed += int(done.stdout)
        assert content(folder) == content(tmp_path / "whole")
    assert len(content(tmp_path / "whole")) == num_rounds * 4 * 2
    assert num_killed >= 5


def test_a_last_line_cut_at_any_byte_is_measured_again(tmp_path: Path) -> None:
    sweep = fake_sweep(num_rounds=2, workers=(1,))
    run_fake(tmp_path, sweep)
    path = tmp_path / CELLS_FILE
    whole, expected = path.read_bytes(), content(tmp_path)
    last = whole.rfind(b"\n", 0, -1) + 1
    for end in (last - 1, last, last + 1, *range(last + 2, len(whole), 29), len(whole) - 1, len(whole)):
        path.write_bytes(whole[:end])
        # Whoever only reads sees whole rows.
        assert len(read_cells(path)) == len(expected) - (end <= len(whole) - 1) - (end < last)
        run_fake(tmp_path, sweep)
        assert content(tmp_path) == expected, f"cut at byte {end} of {len(whole)}"


def test_finished_cells_are_not_measured_again_and_new_steps_are(tmp_path: Path) -> None:
    run_fake(tmp_path, fake_sweep(num_rounds=1))
    measured = []

    def measure(cell):
        measured.append((cell.method, cell.workers, cell.round))
        return fake_measure(cell)

    sweep = fake_sweep(num_rounds=2)
    with open_journal(tmp_path) as journal:
        run_missing(sweep, journal, measure, PROVENANCE, no_estimate(sweep, journal), lambda text: None)
        assert not missing(sweep, journal)
    assert {round_ for _, _, round_ in measured} == {1}
    assert len(measured) == 4 * 2
    assert len(read_cells(tmp_path / CELLS_FILE)) == 2 * 4 * 2


def test_a_failed_cell_is_kept_with_its_error_and_measured_again_on_demand(tmp_path: Path) -> None:
    sweep = fake_sweep(workers=(1,))
    run_fake(tmp_path, sweep)
    failed = [row for row in read_cells(tmp_path / CELLS_FILE) if row.status == FAILED]
    assert [(row.settings["method"], row.settings["round"], row.error) for row in failed] == [
        ("fwp", 1, "ValueError: fwp does not work on Tuesdays")
    ]
    assert len(read_cells(tmp_path / CELLS_FILE)) == 3 * 4
    with open_journal(tmp_path) as journal:
        assert not missing(sweep, journal)
    with open_journal(tmp_path, retry_failed=True) as journal:
        assert [cell.identity for _, cell in missing(sweep, journal)] == [failed[0].cell]
        assert len(read_cells(tmp_path / CELLS_FILE)) == 3 * 4 - 1
    with open_journal(tmp_path, force=True) as journal:
        assert len(missing(sweep, journal)) == 3 * 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [b"{}", *lines], r"cells\.jsonl:1: damaged.*remove it"),
        (lambda lines: [lines[0], lines[1][:-9], lines[2]], r"cells\.jsonl:2: damaged"),
        (lambda lines: [lines[0], b"\xff\xfe", lines[2]], r"cells\.jsonl:2: damaged"),
        (lambda lines: [*lines, lines[0]], r"cells\.jsonl:9: cell \w+ is there twice"),
        (lambda lines: [lines[0].replace(b'"schema": 1', b'"schema": 2')], r":1: schema 2, .*newer version"),
        (lambda lines: [lines[0].replace(b'"status"', b'"colour"')], r":1: not a cell's line"),
    ],
)
def test_damage_that_no_kill_leaves_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    run_fake(tmp_path, fake_sweep(num_rounds=1))
    path = tmp_path / CELLS_FILE
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())) + b"\n")
    held = path.read_bytes()
    with pytest.raises(ValueError, match=message), open_journal(tmp_path):
        pass
    assert path.read_bytes() == held


def test_two_sweeps_cannot_write_to_one_folder(tmp_path: Path) -> None:
    with open_journal(tmp_path), pytest.raises(ValueError, match="another sweep is writing"):
        run_fake(tmp_path, fake_sweep())
    run_fake(tmp_path, fake_sweep())
