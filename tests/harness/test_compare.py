"""`nestpipe run` from validated job to table, JSON and exit, on real workers with fake methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from harness import compare as comparing
from harness.compare import compare
from harness.errors import LaunchError, user_errors
from harness.op_trace import TracedOp, read_trace
from harness.options import Settings, Training
from harness.results import read_results
from harness.worker import WorkerReport
from tests.harness.fakes import fake_job


def run_json(output: str) -> list[dict]:
    return json.loads(output.splitlines()[-1])["runs"]


def test_two_worker_counts_with_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(fake_job("same", "rough", check=True), [1, 2], tmp_path, as_json=True)
    output = capsys.readouterr().out
    runs = run_json(output)
    assert [(run["method"], run["workers"]) for run in runs] == [
        ("same", 1),
        ("rough", 1),
        ("same", 2),
        ("rough", 2),
    ]
    assert all(len(run["loss"]) == 7 and run["batch_size"] == 6 for run in runs)
    assert all(run["step_ms"]["p10"] <= run["step_ms"]["p50"] <= run["step_ms"]["p90"] for run in runs)
    assert runs[2]["qps"] == pytest.approx(1e3 * 2 * 6 / runs[2]["step_ms"]["p50"])
    assert runs[0]["loss"] == runs[1]["loss"]
    assert runs[0]["exactness"] == {
        "class": "bitwise",
        "against": "plain",
        "max_difference": 0.0,
        "arbiter": None,
    }
    assert runs[1]["exactness"]["class"] == "approximate"
    assert 0 < runs[1]["exactness"]["max_difference"] < 0.1
    assert "plain" not in [run["method"] for run in runs]
    assert "bitwise: 0 against plain" in output
    table = read_results(tmp_path)
    assert sorted(table.workers.unique()) == [1, 2]
    assert len(list(tmp_path.glob("steps-*.jsonl"))) == 1


def test_without_a_check_nothing_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(fake_job("same", num_steps=2), [1], tmp_path, as_json=True)
    output = capsys.readouterr().out
    assert run_json(output)[0]["exactness"] == {
        "class": "unchecked",
        "against": None,
        "max_difference": None,
        "arbiter": None,
    }
    assert "only 2 steps measured" in output


def test_a_broken_promise_fails_after_all_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.ClickException, match=r"off at 1 workers .*FAILED.* broken at 1 workers"):
        compare(fake_job("plain", "off", "broken", check=True), [1], tmp_path, as_json=True)
    runs = {run["method"]: run["exactness"] for run in run_json(capsys.readouterr().out)}
    assert runs["off"]["class"] == "FAILED"
    assert runs["off"]["max_difference"] > 1e-6
    assert runs["broken"] == {
        "class": "FAILED",
        "against": "plain",
        "max_difference": None,
        "arbiter": None,
    }
    assert set(read_results(tmp_path).method) == {"plain", "off", "broken"}


def test_rows_of_earlier_worker_counts_survive_a_dead_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.ClickException, match=r"rank 1 of 2 .*SIGKILL"), user_errors():
        compare(fake_job("dying"), [1, 2], tmp_path, as_json=True)
    runs = run_json(capsys.readouterr().out)
    assert [(run["method"], run["workers"]) for run in runs] == [("dying", 1)]
    assert set(read_results(tmp_path).workers) == {1}


def test_a_workers_traceback_reaches_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.ClickException, match="RuntimeError"), user_errors():
        compare(fake_job("raising"), [1], tmp_path)
    assert "torch.zeros(2) @ torch.zeros(3)" in capsys.readouterr().err


def op_of(reports: Sequence[WorkerReport]) -> list[TracedOp]:
    """One op a launch, in place of those that methods on the engine leave."""
    return [TracedOp("same", len(reports), 0, 6, "update", 1, None, "host", 1, 0.0, 0.0, 1.0, 1.0)]


def test_a_trace_replaces_an_earlier_one_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("an old file")
    monkeypatch.setattr(comparing, "_traced", op_of)
    compare(fake_job("same", num_steps=2), [1, 2], tmp_path, trace=trace)
    assert [op.workers for op in read_trace(trace)] == [1, 2]


def test_a_call_that_fails_leaves_an_earlier_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("an old file")
    with pytest.raises(LaunchError, match="at least 1"):
        compare(fake_job("refusing"), [1], tmp_path, trace=trace)
    assert trace.read_text() == "an old file"


def test_a_missing_device_leaves_an_earlier_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("an old file")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    job = fake_job("same", settings=Settings(training=Training(device="cuda")))
    with pytest.raises(ValueError, match="device=cuda needs"):
        compare(job, [1], tmp_path, trace=trace)
    assert trace.read_text() == "an old file"
