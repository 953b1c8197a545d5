"""The installed command on the real methods and the synthetic workload."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from harness.results import read_results


def nestpipe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from harness.cli import main; main()", "run", *arguments]
    command += ["--set", "preset=tiny", "--out", str(folder), "--cache", str(folder / "cache")]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_torchrec_and_the_engine_side_by_side(tmp_path: Path) -> None:
    done = nestpipe(
        tmp_path, "torchrec", "dbp", "2d-sp", "--workers", "2", "--steps", "4", "--check", "exact", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    runs = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert [run["method"] for run in runs] == ["torchrec", "dbp", "2d-sp"]
    assert runs[0]["exactness"]["class"] == "unchecked"
    assert runs[1]["exactness"] == {
        "class": "bitwise",
        "against": "sync",
        "max_difference": 0.0,
        "arbiter": None,
    }
    for run in runs:
        parts = [run["exposed_ms"]["lookup"], run["exposed_ms"]["comm"], run["dense_ms"]]
        assert all(math.isfinite(part) and part >= 0 for part in parts)
        assert len(run["loss"]) == 4
    assert runs[0]["loss"] == pytest.approx(runs[1]["loss"], rel=1e-5)
    assert len(read_results(tmp_path)) == 9 + 10 + 9


@pytest.mark.slow
def test_a_methods_refusal_reaches_the_user(tmp_path: Path) -> None:
    done = nestpipe(tmp_path, "2d-sp", "--workers", "2", "--set", "replicas=3", "--steps", "1")
    assert done.returncode == 1
    assert "2 workers cannot be split into replicas=3" in done.stderr
    assert "Traceback" not in done.stderr
