"""`scripts/gpu_check.sh` between a fake `nestpipe` and a fake `python`: what it runs, and what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.catalog import get_method
from tests.harness.fakes import fake_job

NESTPIPE = """#!/bin/bash
echo "$*" >>{calls}
case $1 in
    kernels) echo began; echo "cannot go on" >&2; exit {kernels} ;;
    *) echo "a table"; echo '{{"'$1'": [1]}}'; echo "a late word"; echo "a late warning" >&2 ;;
esac
"""
# -c asks for a GPU and for FBGEMM's build, -m runs the tests, - is the script's own program.
PYTHON = """#!/bin/bash
case $1 in
    -c) if [[ $2 == *fbgemm* ]]; then exit {fbgemm}; fi ;;
    -m) echo "$*" >>{calls}; echo "12 passed" ;;
    -) exec {python} "$@" ;;
esac
"""


def check(
    repository: Path, folder: Path, *, fbgemm: int = 0, kernels: int = 0
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], list[str]]:
    """The script's end, what it wrote, and the commands that it ran."""
    calls, out = folder / "calls", folder / "check.json"
    values = {"calls": calls, "python": sys.executable, "fbgemm": fbgemm, "kernels": kernels}
    for name, text in (("nestpipe", NESTPIPE), ("python", PYTHON)):
        program = folder / name
        program.write_text(text.format(**values))
        program.chmod(0o755)
    ended = subprocess.run(
        ["bash", str(repository / "scripts" / "gpu_check.sh"), str(out)],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended, json.loads(out.read_text()), calls.read_text().splitlines()


def test_a_late_warning_loses_no_result(repository: Path, tmp_path: Path) -> None:
    ended, document, calls = check(repository, tmp_path)
    steps = document["steps"]
    assert ended.returncode == 0, ended.stderr
    assert "a late word" in ended.stdout
    assert "a late warning" in ended.stderr
    assert steps["doctor"]["result"] == {"doctor": [1]}
    assert steps["run"]["result"] == {"run": [1]}
    assert steps["tests"]["result"] == "12 passed"
    assert document["remarks"] == []
    (run,) = (call for call in calls if call.startswith("run"))
    assert "torchrec torchrec-sparse-dist sync dbp fwp nestpipe" in run
    assert "--check exact" in run


def test_a_failed_step_fails_the_check_and_keeps_its_errors(repository: Path, tmp_path: Path) -> None:
    ended, document, _ = check(repository, tmp_path, kernels=3)
    assert ended.returncode == 1
    step = document["steps"]["kernels"]
    assert (step["exit_code"], step["result"], step["errors"]) == (3, ["began"], ["cannot go on"])
    assert document["steps"]["run"]["exit_code"] == 0


def test_without_fbgemm_for_cuda_nothing_is_compared_with_torchrec(repository: Path, tmp_path: Path) -> None:
    """A checked run that lists sync would build TorchRec."""
    ended, document, calls = check(repository, tmp_path, fbgemm=1)
    assert ended.returncode == 0, ended.stderr
    assert "sync, which promises to equal it, unchecked" in document["remarks"][0]
    timed, checked = (call.split() for call in calls if call.startswith("run"))
    assert ("sync" in timed, "--check" in timed) == (True, False)
    assert ("sync" in checked, "--check" in checked) == (False, True)
    assert "torchrec" not in timed + checked
    assert set(document["steps"]) == {"doctor", "tests", "kernels", "run", "exact"}


def test_a_check_against_sync_builds_no_torchrec() -> None:
    """What the script relies on."""
    job = replace(fake_job("dbp", "fwp", "nestpipe", check=True), find_method=get_method)
    assert job.built_methods() == ["dbp", "fwp", "nestpipe", "sync"]
