"""`nestpipe claims` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.claims.claim import load
from harness.claims.rows import read
from harness.claims_command import claims
from harness.launch import LaunchError
from harness.reproduce import sources
from harness.reproduce.measured import Measured, Run
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
    return asked


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
