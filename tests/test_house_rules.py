"""What the project promises about itself: import direction, quick starts, documented commands."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.cli import main

PACKAGES = ("nestpipe", "baselines", "workloads", "harness")
# Each package may import itself and those that are named here.
ALLOWED = {
    "nestpipe": set(),
    "baselines": {"nestpipe"},
    "workloads": {"nestpipe"},
    "harness": {"nestpipe", "baselines", "workloads"},
}


def imported_packages(path: Path) -> set[str]:
    """The project's packages that a file imports, at its top or later."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return {name.partition(".")[0] for name in names} & {*PACKAGES, "tests"}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_never_point_upward(repository: Path, package: str) -> None:
    for path in sorted((repository / package).rglob("*.py")):
        upward = imported_packages(path) - ALLOWED[package] - {package}
        assert not upward, f"{path.relative_to(repository)} imports {sorted(upward)}"


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement",
    [
        "import nestpipe.schedule, nestpipe.schedules",
        "from baselines import registry; registry.summaries()",
        "from workloads import registry; registry.describe()",
        "import harness.results",
        "from harness.cli import main; main(['--help'], standalone_mode=False)",
        "from harness.cli import main; main(['run', '--help'], standalone_mode=False)",
    ],
)
def test_loads_no_torch(statement: str) -> None:
    assert not {"torch", "torchrec", "pandas"} & loaded_after(statement)


@pytest.mark.timed
def test_help_is_there_at_once() -> None:
    command = [sys.executable, "-c", "from harness.cli import main; main(['--help'])"]
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, timeout=30, check=True)
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.4


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group below `command`, with the words that lead to it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"),
    list(commands(main)),
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_every_command_is_documented_with_an_example(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help
    assert "Example" in command.help
    assert f"nestpipe {' '.join(path)}".strip() in command.help
    assert CliRunner().invoke(main, [*path, "--help"]).exit_code == 0
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.name}"


def test_packages_and_script_exist(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    included = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert included == [f"{package}*" for package in PACKAGES]
    for package in PACKAGES:
        folders = {path.parent for path in (repository / package).rglob("*.py")}
        assert all((folder / "__init__.py").is_file() for folder in folders)
    assert project["project"]["scripts"]["nestpipe"] == "harness.cli:main"


def test_locks_are_portable(repository: Path) -> None:
    locks = sorted((repository / "requirements").glob("*.txt"))
    assert [lock.name for lock in locks] == ["cpu.txt", "cuda.txt", "dev.txt"]
    for lock in locks:
        for line in lock.read_text().splitlines():
            assert line.startswith("#") or line.count("==") == 1, f"{lock.name}: {line}"
            assert not {"/", "@", "+"} & set(line.partition("#")[0]), f"{lock.name}: {line}"
