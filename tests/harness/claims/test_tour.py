"""`nestpipe kick-the-tires`: its commands exist, failures are told and do not end it, nothing hangs."""

from __future__ import annotations

import json
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner

from baselines import registry
from harness.claims import tour
from harness.claims.tour import FAILED, PASSED, Stage, stages, walk
from harness.cli import main

SIMULATE = ("simulate", "sync", "--workers", "128", "--steps", "1")


def parse(arguments: list[str]) -> None:
    """Read a command line as click would, and run nothing."""
    command: click.Command = main
    while isinstance(command, click.Group):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context("nestpipe", arguments)


@pytest.mark.parametrize("known", [["doctor"], []])
def test_every_command_of_the_tour_can_be_typed(known: list[str], tmp_path: Path) -> None:
    commands = [command for stage in stages(tmp_path, tmp_path, known) for command in stage.commands]
    (tmp_path / "claims").mkdir()  # as the command before leaves it
    for command in commands:
        if command != ("--version",):
            parse(list(command))
    words = {word for command in commands for word in command}
    assert set(registry.names()) <= words
    assert {"verify", "simulate", "run", "exact", "emulated", "train", "report"} <= words


def test_training_is_on_real_data_where_they_are_at_hand(tmp_path: Path) -> None:
    assert "synthetic" in stages(tmp_path, tmp_path, [])[-1].commands[0]
    data = tmp_path / "downloads" / "ml-100k" / "ml-100k.inter"
    data.parent.mkdir(parents=True)
    data.touch()
    assert "movielens" in stages(tmp_path, tmp_path, [])[-1].commands[0]


def test_a_stage_that_fails_is_told_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = [Stage("bad one", (("verify", "nestpip"), SIMULATE)), Stage("good", (SIMULATE,))]
    monkeypatch.setattr(tour, "stages", lambda *arguments: made)
    result = CliRunner().invoke(main, ["kick-the-tires", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert "did you mean 'nestpipe'" in result.stderr
    document = json.loads(result.stdout.splitlines()[-1])
    assert [stage["verdict"] for stage in document["stages"]] == [FAILED, PASSED]
    assert "1 of 2 passed" in result.stdout
    folder = Path(document["folder"])
    # The stage ends with the command that failed.
    assert (folder / "bad-one.log").read_text().count("$ nestpipe") == 1
    assert "simulated" in (folder / "good.log").read_text()


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tour, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(tour, "GRACE_S", 0.5)
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"
    monkeypatch.setattr(tour, "_PROGRAM", ignoring)
    [result] = walk([Stage("hanging", (SIMULATE,))], tmp_path)
    assert result.verdict == FAILED
    assert "took longer than" in result.reason


def test_told_to_end_it_ends_what_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command itself asks its parent to end, and would then wait for ever."""
    program = (
        "import os, signal\nprint(os.getpid(), flush=True)\nos.kill(os.getppid(), signal.SIGTERM)\n"
        "while True: signal.pause()"
    )
    monkeypatch.setattr(tour, "_PROGRAM", program)
    with pytest.raises(SystemExit):
        list(walk([Stage("ending", (SIMULATE,))], tmp_path))
    child = int((tmp_path / "ending.log").read_text().split()[-1])
    assert not psutil.pid_exists(child)
