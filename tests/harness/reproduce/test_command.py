"""The commands as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.launch import LaunchError
from harness.reproduce import sources
from harness.reproduce_command import ablate, reproduce
from tests.harness.reproduce.formula import FormulaSource


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Sources come from the formula; what they were opened with is kept."""
    asked = []

    def open_source(evidence: str, *, num_workers: int, steps: int) -> FormulaSource:
        asked.append((evidence, num_workers, steps))
        return FormulaSource()

    monkeypatch.setattr(sources, "open_source", open_source)
    return asked


def test_reproduce_ends_with_json(opened: list[tuple[str, int, int]], tmp_path: Path) -> None:
    arguments = ["table2", "--workers", "2", "--steps", "7", "--out", str(tmp_path / "new"), "--json"]
    result = CliRunner().invoke(reproduce, arguments)
    assert result.exit_code == 0, result.output
    assert opened == [("emulated", 2, 7)]
    assert len(json.loads(result.output.splitlines()[-1])["cells"]) == 32
    assert {path.name for path in (tmp_path / "new").iterdir()} >= {"table2.png", "table2.svg"}


def test_ablate_compares_five_variants(opened: list[tuple[str, int, int]], tmp_path: Path) -> None:
    result = CliRunner().invoke(ablate, ["--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    cells = json.loads(result.output.splitlines()[-1])["cells"]
    assert list(dict.fromkeys(cell["row"] for cell in cells)) == [
        "sync",
        "dbp",
        "fwp",
        "fwp-unclustered",
        "nestpipe",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel2"], "tabel2"),
        ([], "Missing argument"),
        (["table2", "--evidence", "guessed"], "emulated"),
        (["table2", "--workers", "0"], "--workers"),
        (["table2", "--steps", "0"], "--steps"),
    ],
)
def test_mistakes_get_a_message(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(reproduce, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_an_unwritable_folder_is_told_before_anything_runs(
    opened: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(reproduce, ["table2", "--out", str(tmp_path / "file" / "out")])
    assert result.exit_code == 1
    assert "Error: " in result.output
    assert "Traceback" not in result.output


def test_a_failed_launch_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(evidence: str, *, num_workers: int, steps: int) -> FormulaSource:
        raise LaunchError("worker 1 died with exit code 9", "its trace")

    monkeypatch.setattr(sources, "open_source", fail)
    result = CliRunner().invoke(reproduce, ["table2", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "Error: worker 1 died with exit code 9" in result.output
    assert "its trace" in result.output


@pytest.mark.parametrize(
    "statement",
    [
        "import harness.reproduce_command, harness.paper, harness.reproduce.cells",
        "from harness.reproduce_command import reproduce as c; c(['--help'], standalone_mode=False)",
    ],
)
def test_help_is_there_without_heavy_imports(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not {"torch", "pandas", "numpy", "matplotlib", "seaborn", "scipy"} & loaded
