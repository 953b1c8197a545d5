"""`nestpipe conformance`: every fault is found and named, and the project's own methods have none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from torch.distributed.launcher.api import LaunchConfig

from baselines import registry
from harness.cli import main
from harness.conformance import report
from harness.conformance.job import FAILED, NOT_REACHED, PASSED, SKIPPED, ConformanceJob, Examined, Finding
from harness.conformance.worker import LEFTOVERS, run_conformance
from harness.launch import launch_function
from harness.options import Settings
from tests.harness.conformance.wrong import WRONG, find_method

TINY = Settings(workload={"preset": "tiny"})


@pytest.fixture(scope="module")
def examined() -> dict[str, Examined]:
    """All faulty methods, examined in one launch."""
    job = ConformanceJob(
        methods=tuple(WRONG),
        workload="synthetic",
        seed=0,
        cache_dir=Path("unused"),
        settings=TINY,
        find_method=find_method,
    )
    with pytest.MonkeyPatch.context() as patch:
        # As the launches of single tests are.
        patch.setattr("harness.launch.LaunchConfig", partial(LaunchConfig, start_method="forkserver"))
        return {found.method: found for found in launch_function(run_conformance, job, 2)[0]}


@pytest.mark.parametrize("name", WRONG)
def test_the_fault_is_found_where_it_is(examined: dict[str, Examined], name: str) -> None:
    _, check, message = WRONG[name]
    findings = {finding.check: finding for finding in examined[name].findings}
    failed = [finding for finding in examined[name].findings if finding.verdict == FAILED]
    assert not examined[name].conforms
    assert message in findings[check].detail
    # A step without its update shows in the exactness as well.
    others = {
        "stale": {"exactness"},
        "RenamesState": {"state", "evaluate", "rows of a table", "exactness"},
        "RenamesHead": {"given weights", "state", "evaluate"},
    }
    assert {finding.check for finding in failed} - others.get(name, set()) == {check}


def test_what_cannot_be_asked_any_more_is_not_called_passed(examined: dict[str, Examined]) -> None:
    verdicts = {finding.check: finding.verdict for finding in examined["StopsEarly"].findings}
    assert verdicts["exactness"] == NOT_REACHED
    assert verdicts[LEFTOVERS] == PASSED
    verdicts = {finding.check: finding.verdict for finding in examined["RaisesInEvaluation"].findings}
    assert verdicts["progress"] == PASSED
    assert verdicts[LEFTOVERS] == NOT_REACHED


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_method_conforms() -> None:
    job = ConformanceJob(
        methods=tuple(registry.names()),
        workload="synthetic",
        seed=0,
        cache_dir=Path("unused"),
        settings=TINY,
    )
    for found in launch_function(run_conformance, job, 2)[0]:
        wrong = [finding for finding in found.findings if finding.verdict not in (PASSED, SKIPPED)]
        assert not wrong, found.method
        asked = {finding.check for finding in found.findings if finding.verdict == PASSED}
        assert {"evaluate", "rows of a table", "collectives"} <= asked, found.method


def test_the_table_the_line_of_json_and_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        Examined("sync", (Finding("build", PASSED, "EngineRunner"), Finding("evaluate", SKIPPED, "[none]"))),
        Examined("dbp", (Finding("build", FAILED, "rank 1: no"), Finding("evaluate", NOT_REACHED, ""))),
    )
    monkeypatch.setattr(report, "launch_function", lambda function, job, num_workers: [found])
    result = CliRunner().invoke(main, ["conformance", "sync", "dbp", "--json"])
    assert result.exit_code == 1
    assert "Error: does not conform: dbp" in result.output
    assert "sync conforms: synthetic, 2 workers" in result.stdout
    assert "[none]" in result.stdout
    document = json.loads(result.stdout.splitlines()[-1])
    assert (document["schema"], document["workers"], document["workload"]) == (1, 2, "synthetic")
    assert [method["conforms"] for method in document["methods"]] == [True, False]
    assert document["methods"][1]["checks"][0] == {
        "check": "build",
        "verdict": "failed",
        "detail": "rank 1: no",
    }
    monkeypatch.setattr(report, "launch_function", lambda function, job, num_workers: [found[:1]])
    assert CliRunner().invoke(main, ["conformance", "sync"]).exit_code == 0


def test_the_cache_and_where_the_workers_are_reach_the_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs: list[ConformanceJob] = []

    def launch(function: object, job: ConformanceJob, num_workers: int) -> list[tuple[Examined, ...]]:
        jobs.append(job)
        return [()]

    monkeypatch.setattr(report, "launch_function", launch)
    result = CliRunner().invoke(main, ["conformance", "sync", "--cache", str(tmp_path / "cache")])
    assert result.exit_code == 0, result.output
    assert jobs[-1].cache_dir == tmp_path / "cache"
    assert jobs[-1].is_one_machine
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    report.examine(jobs[0], 4)
    assert not jobs[-1].is_one_machine


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["conformance"], 2, "METHOD"),
        (["conformance", "dbb"], 1, "did you mean 'dbp'?"),
        (["conformance", "dbp", "--set", "batchsize=3"], 1, "did you mean 'batch_size'?"),
        (["conformance", "dbp", "--workers", "0"], 2, "--workers"),
    ],
)
def test_mistakes_get_a_message(arguments: list[str], code: int, message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, "Traceback" in result.output) == (code, False)
    assert message in result.output
