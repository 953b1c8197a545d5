"""What a series of launches leaves: rows, users, curves, tables; and what of it when one fails."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import click
import numpy as np
import pytest

from harness.errors import user_errors
from harness.launch import LaunchError
from harness.results import start_run
from harness.training import experiment
from harness.training.job import TrainingJob
from harness.training.reports import TrainingReport
from harness.training.rows import TrainingRow, load_users, save
from tests.harness.training.fakes import training_job
from tests.harness.training.samples import METRICS, launched, training


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Reports come from here; the third launch fails. Keeps the workers and seed of each."""
    asked: list[tuple[int, int]] = []

    def launch(function: object, job: TrainingJob, num_workers: int) -> list[TrainingReport]:
        asked.append((num_workers, job.seed))
        if len(asked) == 3:
            raise LaunchError("rank 1 of 2 ended with exit code 9", "its trace")
        methods = [training(name, (0.1, 0.2 + job.seed), ranks=(1, 20)) for name in job.methods]
        return [TrainingReport(rank, 64, tuple(methods)) for rank in range(num_workers)]

    monkeypatch.setattr(experiment, "launch_function", launch)
    return asked


def test_every_launch_leaves_rows_and_users(
    launches: list[tuple[int, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.train(training_job("a", "b", **KNOWN), (2,), (0, 4), tmp_path, as_json=True)
    assert launches == [(2, 0), (2, 4)]
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert all(set(row) == {field.name for field in fields(TrainingRow)} for row in rows)
    # Two seeds, methods and epochs; loss, two durations and the metrics.
    assert len(rows) == 2 * 2 * 2 * (3 + len(METRICS))
    last = [row for row in rows if (row["method"], row["seed"], row["epoch"]) == ("b", 4, 2)]
    assert {row["metric"]: row["value"] for row in last} == {
        "loss": 7.0,
        "train_s": 1.5,
        "evaluation_s": 0.5,
        **dict.fromkeys(METRICS, 4.2),
    }
    assert all((row["step"], row["steps"], row["loss"]) == (20, 20, 7.0) for row in last)
    assert all(row["evidence"] == "measured" and row["machine"] and row["commit"] is not None for row in last)
    saved = sorted(tmp_path.glob("users-*/*.npz"))
    assert [path.name for path in saved] == [
        f"{name}-2-workers-seed-{seed}.npz" for name in "ab" for seed in (0, 4)
    ]
    assert load_users(saved[0]).ranks.tolist() == [1, 20]
    assert {path.suffix for path in tmp_path.glob("train-*")} == {".png", ".svg"}
    output = capsys.readouterr().out
    document = json.loads(output.splitlines()[-1])
    assert [result["metrics"]["hr@10"]["mean"] for result in document["results"]] == [2.2, 2.2]
    assert document["differences"][0]["users_whose_top_items_differ"]["mean"] == 0.0
    assert "2.2000 ± 2.0000" in output
    assert "+0.00 ± 0.00" in output


def test_a_failed_launch_costs_itself_and_those_after_it(
    launches: list[tuple[int, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.ClickException, match="exit code 9"), user_errors():
        experiment.train(training_job("a", **KNOWN), (1, 2), (0, 1), tmp_path)
    assert launches == [(1, 0), (1, 1), (2, 0)]
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert {(row["workers"], row["seed"]) for row in rows} == {(1, 0), (1, 1)}
    captured = capsys.readouterr()
    assert "incomplete: 2 of 4 launches are missing" in captured.out
    assert "its trace" in captured.err


def test_mistakes_are_told_before_anything_is_launched(
    launches: list[tuple[int, int]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        experiment.train(training_job("plain"), (1,), (0,), tmp_path / "file" / "out")
    assert not launches


def test_no_file_of_users_is_left_half_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(file: object, **arrays: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    job = training_job("a")
    run = start_run(job.workload, job.settings, seed=0, steps=3, evidence="measured")
    with pytest.raises(OSError, match="no space"):
        save(tmp_path, run, launched(0, training("a", (0.1,), ranks=(1, 2))))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def find_any(name: str) -> object:
    return None


KNOWN = {"find_method": find_any}
