"""Packages of third parties that cannot be used: the tools that diagnose them name each, and go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from baselines import registry
from harness.cli import main

METHOD = """
from baselines.interface import Method

class Mine(Method):
    name, exactness = "mine", None
    def build(self, setup): ...

"""
# By the entry point's name: its module's text, the attribute that it names, and what must be said of it.
BROKEN = {
    "misspelt": ("MINE = 1\n", "MIEN", "AttributeError: module 'misspelt_module' has no attribute 'MIEN'"),
    "unfinished": ("def mine(:\n", "MINE", "SyntaxError: invalid syntax (unfinished_module.py, line 1)"),
    "raising": ("raise RuntimeError('no licence\\nfor this')\n", "MINE", "RuntimeError: no licence"),
    "leaving": ("raise SystemExit('a script')\n", "MINE", "SystemExit: a script"),
    "number": ("MINE = 1\n", "MINE", "this is of type int, which is no baselines.interface.Method"),
    "class": (METHOD, "Mine", "this is the class Mine; name an object of it"),
    "silent": (METHOD + "del Mine.exactness\nMINE = Mine()\n", "MINE", "Mine does not declare exactness"),
    "vague": (METHOD + "Mine.exactness = 'yes'\nMINE = Mine()\n", "MINE", "its exactness is 'yes'"),
    "unset": (METHOD + "Mine.settings = {'depth': int}\nMINE = Mine()\n", "MINE", "its settings are not"),
}


def install(folder: Path, package: str, points: dict[str, str]) -> None:
    """A package's metadata as pip leaves them, with entry points `name = module:attribute`."""
    metadata = folder / f"{package}-2.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.5\n")
    lines = "".join(f"{name} = {target}\n" for name, target in points.items())
    (metadata / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\n{lines}")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, one with every fault, two that want a name that is taken, all installed."""
    for name, (text, _, _) in BROKEN.items():
        (tmp_path / f"{name}_module.py").write_text(text)
    (tmp_path / "good_module.py").write_text(METHOD + "MINE = Mine()\n")
    install(tmp_path, "faults", {name: f"{name}_module:{BROKEN[name][1]}" for name in BROKEN})
    install(tmp_path, "first", {"mine": "good_module:MINE", "dbp": "good_module:MINE"})
    install(tmp_path, "second", {"mine": "good_module:OTHER"})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_list_shows_each_as_broken_and_the_rest_as_ever(broken: Path) -> None:
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 0, result.output
    for name, (_, attribute, reason) in BROKEN.items():
        origin = f"package faults 2.5 ({name}_module:{attribute})"
        assert f"method '{name}' of {origin} cannot be used: {reason}" in result.output
    assert "bitwise against sync" in result.output
    assert "max_grad_norm" in result.output
    hidden = [line for line in result.output.splitlines() if "give this entry point another one" in line]
    assert len(hidden) == 2
    assert "plugin, package first 2.5 (good_module:MINE)" in hidden[0]
    assert "the built-in method has the name 'dbp'" in hidden[0]
    assert "plugin, package second 2.5 (good_module:OTHER)" in hidden[1]
    assert "package first 2.5 (good_module:MINE) has the name 'mine'" in hidden[1]


def test_doctor_shows_each_as_broken_and_goes_on(broken: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit), result.output
    document = json.loads(result.stdout.splitlines()[-1])
    methods = [finding for finding in document["findings"] if finding["topic"] == "methods"]
    found = {finding["subject"]: finding for finding in methods if finding["status"] == "broken"}
    assert found.keys() == {*BROKEN, "dbp", "mine"}
    for name, (_, _, reason) in BROKEN.items():
        assert reason in found[name]["detail"]
    assert {"dbp", "mine"} <= {finding["subject"] for finding in methods if finding["status"] == "runs"}
    # The built-in of the name runs, which must not keep the other from the reader.
    assert "  broken  dbp: plugin, package first 2.5" in result.stdout


@pytest.mark.parametrize("name", ["misspelt", "number"])
def test_to_use_one_is_an_error_without_a_traceback(broken: Path, tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(main, ["run", name, "--out", str(tmp_path / "out")])
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert f"Error: method '{name}' of package faults 2.5" in result.output
    assert BROKEN[name][2] in result.output


def test_a_broken_build_of_a_library_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError("undefined symbol\nof another torch")

    monkeypatch.setattr(registry, "import_module", fail)
    assert registry.why_broken("torchrec") == "cannot be imported: OSError: undefined symbol"


def test_completion_imports_none_of_them(broken: Path) -> None:
    code = (
        "import sys; from baselines import registry; registry.summaries(); registry.shadowed();"
        "sys.exit(not {'torch', 'good_module', 'misspelt_module'}.isdisjoint(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(broken)}
    assert subprocess.run([sys.executable, "-c", code], timeout=60, env=environment).returncode == 0
