"""`nestpipe regress` as a user and a CI job see it; what it would measure is given here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.errors import LaunchError
from harness.estimate import Estimate, Estimator
from harness.regress import gate
from harness.regress.findings import Finding, Verdict
from harness.regress.reference import Counter, TimedLaunch, load, save, times_here
from harness.regress.report import MAX_LINES, markdown
from tests.harness.regress.samples import COUNTERS, launches, reference, times


class Measured:
    """What the gate's two kinds of runs bring, and how often it asked."""

    def __init__(self) -> None:
        self.counters: list[Counter] = list(COUNTERS)
        self.launches: list[TimedLaunch] = list(launches(8, seed=3))
        self.error: BaseException | None = None
        self.num_timed = 0

    def collect(self, *args: object) -> list[Counter]:
        if self.error is not None:
            raise self.error
        return self.counters

    def measure(self, timing: object, num_launches: int, *args: object) -> Iterator[TimedLaunch]:
        for launch in self.launches[:num_launches]:
            self.num_timed += 1
            yield launch


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    found = Measured()
    monkeypatch.setattr(gate, "collect", found.collect)
    monkeypatch.setattr(gate, "measure", found.measure)
    monkeypatch.setattr(Estimator, "run", lambda *args: Estimate(7.0, 2.0**30))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A reference that was recorded on this machine."""
    path = tmp_path / "mine.json"
    save(path, reference(times_here(launches(8))))
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["regress", *map(str, arguments)])


def last_json(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def test_an_unchanged_tree_is_fine(measured: Measured, path: Path) -> None:
    result = invoke("--against", path, "--json")
    assert result.exit_code == 0, result.output
    assert "outcome: fine" in result.stdout
    assert "counted in a run: 2 same" in result.stdout
    assert "times were not measured (--times)" in result.stdout
    assert "commit 0123456: the first" in result.stdout
    entry = last_json(result)
    assert (entry["schema"], entry["outcome"], entry["exit_code"]) == (1, "fine", 0)
    assert [finding["verdict"] for finding in entry["findings"]] == ["same"] * 3
    assert measured.num_timed == 0


def test_a_counter_that_moved_ends_with_1_and_says_how_to_record_it(measured: Measured, path: Path) -> None:
    measured.counters[0] = replace(COUNTERS[0], value=93.0)
    result = invoke("--against", path)
    assert result.exit_code == 1
    assert "count/sync/rows read" in result.stdout
    assert "+1.1%" in result.stdout
    assert "record it: --update --reason TEXT" in result.stdout


def test_an_unchanged_time_is_decided_after_two_launches(measured: Measured, path: Path) -> None:
    result = invoke("--against", path, "--times")
    assert result.exit_code == 0, result.output
    assert measured.num_timed == 2
    assert "time/sync" in result.stdout


def test_a_slowdown_ends_with_1(measured: Measured, path: Path) -> None:
    measured.launches = list(launches(8, slower=1.1, ops=3.0, seed=3))
    result = invoke("--against", path, "--times", "--json")
    assert result.exit_code == 1, result.output
    verdicts = {finding["name"]: finding["verdict"] for finding in last_json(result)["findings"]}
    assert verdicts["time/sync"] == verdicts["op/sync/update"] == "slower"
    assert measured.num_timed == gate.MIN_SHIFTED_LAUNCHES


def test_a_slower_op_alone_is_looked_at_again(measured: Measured, path: Path) -> None:
    measured.launches = list(launches(8, ops=3.0, seed=3))
    result = invoke("--against", path, "--times", "--json")
    assert result.exit_code == 1, result.output
    verdicts = {finding["name"]: finding["verdict"] for finding in last_json(result)["findings"]}
    assert (verdicts["time/sync"], verdicts["op/sync/update"]) == ("same", "slower")
    assert measured.num_timed == gate.MIN_SHIFTED_LAUNCHES


def test_what_cannot_be_decided_is_measured_until_the_limit_and_ends_with_2(
    measured: Measured, path: Path
) -> None:
    measured.launches = [replace(launch, base_ms=200.0) for launch in measured.launches]
    result = invoke("--against", path, "--times", "--launches", 4)
    assert result.exit_code == 2
    assert measured.num_timed == 4
    assert "outcome: could not tell" in result.stdout


def test_a_reference_of_another_machine_guards_its_counters_alone(measured: Measured, path: Path) -> None:
    save(path, reference(times(launches(8))))
    assert invoke("--against", path).exit_code == 0
    result = invoke("--against", path, "--times")
    assert result.exit_code == 2
    assert "not comparable" in result.stdout
    assert "record a reference of your own" in result.stdout
    assert measured.num_timed == 1
    measured.counters[0] = replace(COUNTERS[0], value=93.0)
    assert invoke("--against", path, "--times").exit_code == 1


def test_markdown_for_a_pull_request(measured: Measured, path: Path, tmp_path: Path) -> None:
    measured.counters[0] = replace(COUNTERS[0], value=93.0)
    target = tmp_path / "report.md"
    assert invoke("--against", path, "--markdown", target).exit_code == 1
    text = target.read_text()
    assert text.startswith("### against ")
    assert ": regression\n" in text
    assert "| `count/sync/rows read` | **more** | 92 | 93 | +1.1% |  | rows a step |" in text
    refused = invoke("--against", path, "--markdown", target)
    assert refused.exit_code == 2
    assert "--force overwrites it" in refused.output
    assert target.read_text() == text
    assert invoke("--against", path, "--markdown", target, "--force").exit_code == 1


def test_markdown_of_many_findings_stays_short() -> None:
    findings = [Finding(f"count/a|b/{i}", Verdict.NEW, None, 1.0, "") for i in range(MAX_LINES + 5)]
    text = markdown("title", reference(), findings, timed=False)
    assert text.count("\n| `") == MAX_LINES
    assert "and 5 more lines" in text
    assert "`count/a\\|b/0`" in text


def test_an_update_is_written_with_its_reason(measured: Measured, path: Path) -> None:
    before = load(path)
    measured.counters[0] = replace(COUNTERS[0], value=93.0)
    result = invoke("--against", path, "--update", "--reason", "rows of 93 kinds")
    assert result.exit_code == 0, result.output
    after = load(path)
    assert after.counters[0].value == 93.0
    assert after.history[-1].reason == "rows of 93 kinds"
    assert after.times == before.times
    assert invoke("--against", path).exit_code == 0


def test_a_new_reference_of_ones_own(measured: Measured, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    arguments = ("--update", "--reason", "first", "--times", "--launches", 3)
    result = invoke("--against", path, *arguments, "--method", "dbp", "--set", "preset=tiny", "--workers", 1)
    assert result.exit_code == 0, result.output
    assert "3 counters, 3 timed launches" in result.stdout
    experiment = load(path).experiment
    assert experiment.timing.methods == ("dbp",)
    assert experiment.counting.num_workers == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--update",), "--update needs --reason TEXT"),
        (("--update", "--reason", "  "), "--update needs --reason TEXT"),
        (("--reason", "x"), "--reason belongs to --update"),
        (("--method", "dbp"), "belong to --update"),
        (("--update", "--reason", "x", "--method", "dpb"), "did you mean 'dbp'"),
        (("--markdown", "/proc/report.md"), "cannot write into /proc"),
        (("--launches", "0"), "Invalid value"),
    ],
)
def test_wrong_options_end_with_2(
    measured: Measured, path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = invoke("--against", path, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_damaged_references_end_with_2_and_are_kept_without_force(
    measured: Measured, path: Path, tmp_path: Path
) -> None:
    assert invoke("--against", tmp_path / "none.json").exit_code == 2
    path.write_text(path.read_text()[:500])
    damaged = path.read_bytes()
    for arguments in ((), ("--update", "--reason", "x")):
        result = invoke("--against", path, *arguments)
        assert result.exit_code == 2
        assert "no complete JSON" in result.output
        assert path.read_bytes() == damaged
    assert invoke("--against", path, "--update", "--reason", "x", "--force").exit_code == 0
    assert [update.reason for update in load(path).history] == ["x"]


def test_a_target_that_cannot_be_written_is_told_before_anything_runs(
    measured: Measured, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests may run as root, who may write everywhere.
    closed = SimpleNamespace(access=lambda path, mode: False, W_OK=2)
    monkeypatch.setattr("harness.targets.os", closed)
    measured.error = AssertionError("measured in vain")
    result = invoke("--against", path, "--update", "--reason", "x")
    assert result.exit_code == 2
    assert "cannot be written" in result.output


@pytest.mark.parametrize("error", [LaunchError("rank 1 died"), RuntimeError("a bug")])
def test_failures_end_with_2_and_not_as_a_regression(
    measured: Measured, path: Path, error: Exception
) -> None:
    measured.error = error
    result = invoke("--against", path)
    assert result.exit_code == 2
    assert str(error) in result.output


def test_an_interruption_is_no_regression(measured: Measured, path: Path) -> None:
    measured.error = KeyboardInterrupt()
    result = invoke("--against", path)
    assert result.exit_code == 2
    assert "Aborted" in result.output


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "would count: torchrec, "),
        (("--times",), "at most 6 launches"),
        (("--times", "--launches", 1), "at most 1 launch\n"),
        (("--times", "--update", "--reason", "x"), "at most 8 launches"),
    ],
)
def test_a_dry_run_measures_nothing_and_says_what_it_would_take(
    measured: Measured, path: Path, options: tuple[object, ...], expected: str
) -> None:
    before = path.read_bytes()
    result = invoke("--against", path, "--dry-run", *options)
    assert result.exit_code == 0, result.output
    assert expected in result.stdout
    assert ("would time" in result.stdout) == ("--times" in options)
    assert "estimate: about " in result.stdout
    assert (measured.num_timed, path.read_bytes()) == (0, before)


def test_the_estimate_comes_from_the_model(path: Path) -> None:
    result = invoke("--against", path, "--dry-run", "--times")
    assert result.exit_code == 0, result.output
    assert re.search(r"estimate: about \d+ (s|min) and [\d.]+ GiB of memory", result.stdout)
