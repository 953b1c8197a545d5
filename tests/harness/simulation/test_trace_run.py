"""A measured run leaves a trace that costs and charts are made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.op_trace import read_trace
from nestpipe import schedules

STEPS = 4


@pytest.mark.timeout(120)
def test_a_run_is_traced_and_simulated(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("an old file")
    command = ["run", "nestpipe", "torchrec", "--workers", "2", "--steps", str(STEPS), "--warmup", "1"]
    options = [
        "--set",
        "preset=tiny",
        "--set",
        "micro_batches=2",
        "--out",
        str(tmp_path),
        "--trace",
        str(trace),
        "--force",
    ]
    result = CliRunner().invoke(main, [*command, *options])
    assert result.exit_code == 0, result.output
    ops = read_trace(trace)
    assert {(op.method, op.workers, op.rank, op.batch_size) for op in ops} == {
        ("nestpipe", 2, rank, 16) for rank in range(2)
    }
    kinds = {(op.kind, op.micro_batch) for op in ops}
    assert kinds == {(op.kind.value, op.id.micro_batch) for op in schedules.nestpipe(2).steady}
    assert len({op.step for op in ops if op.kind == "update" and op.rank == 0}) >= STEPS
    assert all(op.issued_ms <= op.started_ms <= op.returned_ms <= op.finished_ms for op in ops)

    simulated = ["simulate", "nestpipe", "dbp", "--cost", str(trace), "--workers", "2", "--json"]
    result = CliRunner().invoke(main, [*simulated, "--micro-batches", "2"])
    assert result.exit_code == 0, result.output
    assert all(run["step_ms"] > 0 for run in json.loads(result.output.splitlines()[-1])["runs"])
    result = CliRunner().invoke(main, ["schedule", "show", "nestpipe", "--trace", str(trace)])
    assert result.exit_code == 0, result.output
    assert "measured step" in result.output
