"""Processes that somebody else has started join each other and do what a launch would have done."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness import join
from harness.cli import main
from harness.launch import LaunchError, launch
from harness.results import read_results
from harness.worker import WorkerReport
from tests.distributed import _CONTEXT
from tests.harness.fakes import fake_job

LIMIT_S = 60


def _member(pipe: Connection, rank: int, port: int, method: str, num_launches: int) -> None:
    """One of two tasks of a Slurm step; sends what `launch` gives, if it returns."""
    os.environ.update(
        SLURM_PROCID=str(rank), SLURM_NTASKS="2", MASTER_ADDR="localhost", MASTER_PORT=str(port)
    )
    # Slurm's processes have no Python process above them.
    multiprocessing.parent_process = lambda: None
    join._CHUNK_BYTES = 1000
    try:
        for _ in range(num_launches):
            pipe.send(launch(fake_job(method), 2))
    except (LaunchError, ValueError) as error:
        pipe.send((type(error).__name__, str(error), getattr(error, "traceback", "")))
    finally:
        pipe.close()


@contextmanager
def step(method: str, num_launches: int = 1) -> Iterator[list[tuple[Any, Connection]]]:
    """Two tasks; processes and the ends of their pipes."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    tasks = []
    for rank in range(2):
        here, there = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_member, args=(there, rank, port, method, num_launches))
        process.start()
        there.close()
        tasks.append((process, here))
    try:
        yield tasks
    finally:
        for process, _ in tasks:
            process.kill()
            process.join()


def received(pipe: Connection) -> Any:
    assert pipe.poll(LIMIT_S), "no answer"
    return pipe.recv()


def losses(reports: list[WorkerReport]) -> list[list[float]]:
    return [method.loss for report in reports for method in report.methods]


def test_tasks_of_a_slurm_step_do_what_a_launch_does() -> None:
    with step("plain") as ((first, pipe), (second, other)):
        reports = received(pipe)
        second.join(LIMIT_S)
        assert second.exitcode == 0
        with pytest.raises(EOFError):  # nothing but an end: rank 0 alone goes on
            received(other)
        first.join(LIMIT_S)
        assert first.exitcode == 0
    assert [report.rank for report in reports] == [0, 1]
    assert losses(reports) == losses(launch(fake_job("plain"), 2))


def test_the_worker_that_fails_says_why_and_ends_with_one() -> None:
    with step("raising") as ((_, pipe), (second, _)):
        kind, message, trace = received(pipe)
        second.join(LIMIT_S)
        assert second.exitcode != 0
    assert kind == "LaunchError"
    assert message.startswith("rank 0 of 2: RuntimeError")
    assert "misbehave" in trace


def test_a_second_launch_has_no_workers_any_more() -> None:
    with step("plain", num_launches=2) as ((_, pipe), _):
        assert len(received(pipe)) == 2
        kind, message, _ = received(pipe)
    assert kind == "ValueError"
    assert "serve one launch" in message


@pytest.mark.slow
def test_torchrun_gives_the_rows_of_a_launch(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    program = [sys.executable, "-c", "from harness.cli import main; main()"]
    arguments = ["run", "dbp", "--steps", "3", "--check", "exact", "--set", "preset=tiny", "--json"]
    arguments += ["--cache", str(tmp_path / "cache")]
    joined, launched = tmp_path / "joined", tmp_path / "launched"
    done = subprocess.run(
        [*torchrun, *program, *arguments, "--out", str(joined)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bitwise: 0 against sync") == 1, "rank 0 alone prints"
    assert done.stdout.count('"runs"') == 1
    result = CliRunner().invoke(main, [*arguments, "--workers", "2", "--out", str(launched)])
    assert result.exit_code == 0, result.output
    rows, expected = read_results(joined), read_results(launched)
    same = ["method", "workers", "batch_size", "metric", "unit", "exactness", "workload", "steps"]
    assert rows[same].equals(expected[same])
    exact = ["final_loss", "max_difference"]
    assert (
        rows[rows.metric.isin(exact)].value.tolist() == expected[expected.metric.isin(exact)].value.tolist()
    )
    assert len(list(joined.glob("steps-*.jsonl"))) == 1


@pytest.mark.slow
def test_torchrun_ends_as_its_workers_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    command += [sys.executable, "-c", "from harness.cli import main; main()"]
    command += ["run", "dbp", "--workers", "1,2", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    assert "Error: --workers 1,2 does not fit: torchrun has started 2 of them" in done.stderr
    assert not (tmp_path / "out").exists()
