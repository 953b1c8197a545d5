"""`nestpipe claims` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness import paper
from harness.claims.claim import load
from harness.claims.rows import ROWS_FILE, read
from harness.claims_command import claims
from harness.launch import LaunchError
from harness.probe import Costs
from harness.reproduce import items, sources
from harness.reproduce.cells import make_cells
from harness.reproduce.measured import Measured, Run
from harness.reproduce.rows import new_reproduction
from harness.reproduce.rows import save as save_cells
from tests.harness.reproduce.formula import FormulaSource


class FailingSource(FormulaSource):
    """Cannot run UniEmb."""

    def measure(self, runs: Sequence[Run]) -> dict[Run, Measured]:
        if any(run.method == "uniemb" for run in runs):
            raise LaunchError("rank 1 of 2 ended with exit code 9", "Traceback: here")
        return super().measure(runs)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Step times come from a formula, without UniEmb; what sources were opened with is kept."""
    asked = []

    def open_source(evidence: str, *, num_workers: int, steps: int) -> FormulaSource:
        asked.append((evidence, num_workers, steps))
        return FailingSource(evidence)

    monkeypatch.setattr(sources, "open_source", open_source)
    monkeypatch.setattr("harness.estimate.measure_costs", lambda *_: Costs(1, 1, 1, 1, 0.0, 0.0, 0.0))
    return asked


@pytest.fixture
def reproduced(tmp_path: Path) -> Path:
    """What `nestpipe reproduce table2` leaves."""
    source, [item] = FormulaSource(), items.get("table2")
    measurements = source.measure(item.runs)
    cells = make_cells(item, measurements, paper.load("table2"), "emulated")
    folder = tmp_path / "reproduced"
    folder.mkdir()
    save_cells(folder, new_reproduction(source), cells, measurements)
    return folder


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(claims, arguments)


def document(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_list_shows_claims_with_their_marks() -> None:
    result = invoke("list", "*-gpu", "equal-*", "--json")
    assert result.exit_code == 0, result.output
    ids = [claim["id"] for claim in document(result)["claims"]]
    assert ids == [
        claim.id for claim in load().claims if claim.id.endswith("-gpu") or "equal-" in claim.id[:6]
    ]
    assert all(name in result.stdout for name in ids)
    assert "23.49 [?]" in result.stdout


def test_run_keeps_and_report_tells(opened: list[tuple[str, int, int]], tmp_path: Path) -> None:
    arguments = ["--evidence", "emulated", "--workers", "2", "--steps", "3", "--out", str(tmp_path), "--json"]
    result = invoke("run", "speedup-nestpipe-1536", "step-2d-sp-1536", *arguments)
    assert result.exit_code == 0, result.output
    assert opened == [("emulated", 2, 3)]
    by_id = {claim["id"]: claim["evidence"] for claim in document(result)["claims"]}
    assert by_id["speedup-nestpipe-1536"][0]["verdict"] == "holds"
    assert by_id["step-2d-sp-1536"][0]["verdict"] == "not testable here"

    result = invoke("report", "speedup-nestpipe-*", "--results", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    counts = document(result)["counts"]
    assert counts["emulated"]["holds"] == 1
    assert counts["simulated"]["holds"] == 0
    assert "not run" in result.stdout
    assert "emulated: 1 hold, " in result.stdout

    result = invoke("report", "speedup-nestpipe-1536", "--results", str(tmp_path), "--markdown")
    lines = result.stdout.splitlines()
    assert lines[2].startswith("| NestPipe trains this many times as fast")
    assert "| holds |" in lines[3]
    assert "| not run |" in lines[2]


def test_an_experiment_that_fails_does_not_keep_the_next_from_running(
    opened: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    result = invoke(
        "run", "step-uniemb-1536", "total-comm-nestpipe", "--evidence", "emulated", "--out", str(tmp_path)
    )
    assert result.exit_code == 1
    assert "table2 (emulated): rank 1 of 2 ended with exit code 9" in result.output
    assert "Traceback: here" in result.output
    assert [row.claim for row in read(tmp_path)] == ["total-comm-nestpipe"]


def test_without_arguments_only_what_takes_seconds_runs(tmp_path: Path) -> None:
    result = invoke("run", "--dry-run", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "(simulated)" in result.stdout
    assert "(proved)" in result.stdout
    assert "emulated)" not in result.stdout
    assert "estimate: at most about" in result.stdout
    assert not list(tmp_path.iterdir())


def test_the_estimate_follows_the_options(opened: list[tuple[str, int, int]]) -> None:
    def last_line(*options: str) -> str:
        result = invoke("run", "speedup-nestpipe-1536", "--evidence", "emulated", "--dry-run", *options)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()[-1]

    assert last_line("--steps", "20000").startswith("estimate: about ")
    assert last_line("--steps", "20000") != last_line("--steps", "20")
    assert "do not divide" in invoke("run", "speedup-nestpipe-1536", "--workers", "5", "--dry-run").stdout
    assert not opened


@pytest.mark.parametrize("blocked", ["a file", "a folder"])
def test_a_target_that_cannot_be_written_is_told_before_anything_is_measured(
    blocked: str, opened: list[tuple[str, int, int]], reproduced: Path, tmp_path: Path
) -> None:
    out = tmp_path / "blocked" / "out"
    if blocked == "a file":
        out.parent.touch()
    else:
        (out / ROWS_FILE).mkdir(parents=True)
    run = ("run", "total-comm-nestpipe", "--evidence", "emulated", "--out", str(out))
    step = ("run", "step-nestpipe-1536", "--evidence", "emulated", "--out", str(out))
    for arguments in (run, (*step, "--from", str(reproduced))):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert str(out) in result.output
        assert "use another --out" in result.output
        assert "estimate" not in result.output
    assert not opened


def test_a_dry_run_keeps_nothing_and_says_so(reproduced: Path, tmp_path: Path) -> None:
    arguments = ["step-nestpipe-1536", "--evidence", "emulated", "--from", str(reproduced)]
    kept = tmp_path / "kept"
    result = invoke("run", *arguments, "--out", str(kept), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "step-nestpipe-1536" in result.stdout
    assert "claims, of which none is kept" in result.stdout
    assert "kept in" not in result.stdout
    assert not kept.exists()
    assert f"claims, kept in {kept}" in invoke("run", *arguments, "--out", str(kept)).stdout
    assert len(read(kept)) == 1


def test_a_named_folder_without_verdicts_is_refused_and_a_default_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = invoke("report", "--results", str(tmp_path))
    assert result.exit_code == 1
    assert f"{tmp_path}: no verdicts" in result.output
    assert "nestpipe claims run" in result.output
    (tmp_path / ROWS_FILE).touch()
    assert "no verdicts" in invoke("report", "--results", str(tmp_path)).output
    monkeypatch.chdir(tmp_path)
    result = invoke("report", "equal-dbp")
    assert result.exit_code == 0, result.output
    assert "not run" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "speedup-nestpipe-1537"], "did you mean 'speedup-nestpipe-1536'"),
        (["run", "equal-dbp", "--evidence", "simulated"], "use measured"),
        (["run", "--evidence", "guessed"], "emulated"),
        (["run", "--from", "nowhere"], "no such folder"),
        (["report", "--results", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_answered_with_the_way_out(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
