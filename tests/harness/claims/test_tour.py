"""`nestpipe kick-the-tires`: its commands exist, failures are told and do not end it, nothing hangs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import psutil
import pytest
from click.testing import CliRunner

from baselines import registry
from harness.claims import stages as tour_stages
from harness.claims import tour
from harness.claims.stages import Arguments, Stage, stages
from harness.claims.tour import FAILED, PASSED, walk
from harness.cli import main
from harness.sweep.file import load

SIMULATE = ("simulate", "sync", "--workers", "128", "--steps", "1")


def parse(command: Arguments) -> dict[str, Any]:
    """The parameters of a command line, read as click would; runs nothing."""
    found: click.Command = main
    arguments = list(command)
    while isinstance(found, click.Group):
        found, arguments = found.commands[arguments[0]], arguments[1:]
    return found.make_context("nestpipe", arguments).params


def commands_of(folder: Path, **changes: Path) -> list[Arguments]:
    tour = stages(folder, folder, **changes)
    return [command for stage in tour for command in stage.commands if command != ("--version",)]


def test_every_command_of_the_tour_can_be_typed_and_leaves_its_files_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()  # as the command before leaves it
    for command in commands_of(tmp_path):
        parameters = parse(command)
        if parameters.get("out") is not None:
            assert parameters["out"].is_relative_to(tmp_path), command


def test_the_tour_has_every_command_and_every_method(tmp_path: Path) -> None:
    reference = tmp_path / "ci.json"
    assert {command[0] for command in commands_of(tmp_path, reference=reference)} == set(main.commands) - {
        "kick-the-tires",
        "regress",
    }
    reference.touch()
    commands = commands_of(tmp_path, reference=reference)
    assert ("regress", "--against", str(reference)) in commands
    words = {word for command in commands for word in command}
    assert set(registry.names()) <= words
    assert {"exact", "emulated", "simulated"} <= words


def test_the_ladder_of_the_tour_is_small_and_written_before_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [stage] = [stage for stage in stages(tmp_path, tmp_path) if stage.files]
    monkeypatch.setattr(tour, "_PROGRAM", "import sys; print(open(sys.argv[2]).read())")
    [result] = walk([stage], tmp_path)
    assert result.failed is None
    assert tour_stages.LADDER in (tmp_path / f"{stage.name}.log").read_text()
    assert len(list(load(Path(stage.commands[0][1])).cells())) == 2


def test_training_is_on_real_data_where_they_are_at_hand(tmp_path: Path) -> None:
    def training() -> Arguments:
        [command] = [command for command in commands_of(tmp_path) if command[0] == "train"]
        return command

    assert "synthetic" in training()
    data = tmp_path / "downloads" / "ml-100k" / "ml-100k.inter"
    data.parent.mkdir(parents=True)
    data.touch()
    assert parse(training())["workload"] == "movielens"
    assert parse(training())["cache"] == tmp_path


def test_what_it_leaves_is_not_among_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tour_stages, "stages", lambda *arguments: [Stage("good", (SIMULATE,))])
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["kick-the-tires"]).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["build"]


def test_a_stage_that_fails_is_told_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = [Stage("bad one", (("verify", "nestpip"), SIMULATE)), Stage("good", (SIMULATE,))]
    monkeypatch.setattr(tour_stages, "stages", lambda *arguments: made)
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
