"""The command `nestpipe verify`, as installed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.schedule_file import BUILT_IN

KEYS = ["schedule", "worst_staleness", "buffer_hazards", "collective_order", "counterexample"]
LOSING = """
from dataclasses import replace
from nestpipe import schedules
from nestpipe.schedule import OpKind

def schedule():
    whole = schedules.nestpipe(2)
    steady = tuple(
        replace(op, after=tuple(ref for ref in op.after if ref.kind is not OpKind.SYNC))
        for op in whole.steady
        if op.kind is not OpKind.SYNC
    )
    return replace(whole, steady=steady)
"""
CYCLE = """
from dataclasses import replace
from nestpipe import schedules
from nestpipe.schedule import OpId, OpKind

def schedule():
    whole = schedules.sync()
    steady = tuple(
        replace(op, after=(OpId(OpKind.UPDATE, 0),)) if op.kind is OpKind.COMPUTE else op
        for op in whole.steady
    )
    return replace(whole, steady=steady)
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments])


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_schedules(name: str) -> None:
    result = run(name, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout.splitlines()[-1])
    assert list(document) == KEYS
    stale = int(name == "uniemb")
    assert document["schedule"] == name
    assert document["worst_staleness"] == stale
    assert document["buffer_hazards"] == document["collective_order"] == []
    assert (document["counterexample"] is None) is not stale


def test_a_broken_schedule_fails_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "losing.py"
    file.write_text(LOSING)
    result = run(str(file), "--json")
    assert result.exit_code == 1
    assert "losing: updates can be lost" in result.stdout
    assert "  missing: sync(1), between update(0) and exchange(1, 0)\n" in result.stdout
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["worst_staleness"] > 0
    assert document["counterexample"]["batches"] == [0, 1]
    assert len(document["counterexample"]["life"]) == 3


def test_errors_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "cycle.py"
    file.write_text(CYCLE)
    result = run(str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: cycle: compute(0, 0) waits for update(0) waits for ")
    assert len(result.stderr.splitlines()) == 1
    assert "did you mean 'uniemb'" in run("unimb").stderr


@pytest.mark.timed
def test_it_is_quick_and_imports_no_torch() -> None:
    code = "import sys; from harness.cli import main\n"
    code += "main(['verify', 'nestpipe', '--json'], standalone_mode=False); print('torch' in sys.modules)"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert time.perf_counter() - began < 2
    assert done.stdout.splitlines()[-1] == "False"
