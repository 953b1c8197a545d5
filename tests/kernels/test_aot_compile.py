"""Every kernel compiles for three architectures; registers, spills and accesses are as committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import triton

from tests.kernels.compile_all import REFERENCE


@pytest.fixture(scope="module")
def compiled(repository: Path) -> list[dict[str, Any]]:
    """A row a variant and architecture."""
    command = [sys.executable, "-m", "tests.kernels.compile_all"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, cwd=repository, env=environment
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_aot_no_memory_bound_kernel_spills(compiled: list[dict[str, Any]]) -> None:
    spilling = [row for row in compiled if row["is_memory_bound"] and row["stack_bytes"]]
    assert not spilling


def test_aot_rows_move_in_16_byte_accesses(compiled: list[dict[str, Any]]) -> None:
    narrow = [row for row in compiled if row["moves_rows"] and not (row["wide_loads"] and row["wide_stores"])]
    assert not narrow


def test_aot_table_is_the_committed_one(compiled: list[dict[str, Any]]) -> None:
    reference = json.loads(REFERENCE.read_text())
    if reference["triton"] != triton.__version__:
        pytest.skip(f"the committed table is of Triton {reference['triton']}, this is {triton.__version__}")
    assert compiled == reference["kernels"]
