"""Fetching with a pip of the test's own: no network."""

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from workloads import fetch
from workloads.fetch import FetchError, fetch_ml_100k, ml_100k_path

MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def fake_pip(monkeypatch: pytest.MonkeyPatch, files: dict[str, str], returncode: int = 0) -> list[list[str]]:
    """Replace pip by one that leaves a wheel with `files`; returns the commands that it was given."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        destination = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(destination / "recbole-1.2.1-py3-none-any.whl", "w") as wheel:
            for name, content in files.items():
                wheel.writestr(name, content)
        return subprocess.CompletedProcess(command, returncode, "", "warning\nERROR: no such network\n")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def ratings(num: int) -> str:
    return HEADER + "".join(
        f"{n % 943 + 1}\t{n % 1682 + 1}\t{n % 5 + 1}\t{880000000 + n}\n" for n in range(num)
    )


def test_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    content = ratings(100_000)
    commands = fake_pip(monkeypatch, {MEMBER: content})
    path = fetch_ml_100k(tmp_path)
    assert path == ml_100k_path(tmp_path)
    assert path.read_text() == content
    assert list(path.parent.iterdir()) == [path]
    assert fetch_ml_100k(tmp_path) == path
    assert len(commands) == 1
    assert commands[0][1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in commands[0]
    assert commands[0][-1] == "recbole==1.2.1"


@pytest.mark.parametrize(
    ("files", "returncode", "expected"),
    [
        ({}, 1, "no such network"),
        ({"other": ""}, 0, "has no recbole/"),
        ({MEMBER: ratings(99_999)}, 0, "does not hold 100000 ratings"),
        ({MEMBER: ""}, 0, "does not hold 100000 ratings"),
    ],
)
def test_failures_say_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], returncode: int, expected: str
):
    fake_pip(monkeypatch, files, returncode)
    with pytest.raises(FetchError, match=expected) as caught:
        fetch_ml_100k(tmp_path)
    assert "--set path=" in str(caught.value)
    assert not ml_100k_path(tmp_path).exists()
    assert list(ml_100k_path(tmp_path).parent.iterdir()) == []


def test_slow_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def run(command: list[str], **settings: Any) -> None:
        raise subprocess.TimeoutExpired(command, settings["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(FetchError, match="longer than 300 s"):
        fetch_ml_100k(tmp_path)


def test_terms_name_the_licence_and_the_citation():
    for part in ("redistributed", "research", "Harper", "Konstan", "2015"):
        assert part in fetch.ML_100K_TERMS
