"""fig6: what it concludes from trainings, and how its options go with those of other items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.launch import LaunchError
from harness.reproduce_command import reproduce
from harness.results import start_run
from harness.training import experiment, fig6
from harness.training.experiment import Outcome
from harness.training.job import TrainingJob
from harness.training.reports import TrainingReport
from harness.training.rows import Launched
from harness.training.statistics import Estimate
from tests.harness.training.fakes import training_job
from tests.harness.training.samples import launched, series, training


def outcome(launches: list[Launched]) -> Outcome:
    job = training_job("sync")
    return Outcome(start_run("fake", job.settings, seed=0, steps=1, evidence="measured"), launches)


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ((0.0009,), True),
        ((0.0011,), False),
        ((0.0011, 0.0011), False),
        # Mean 2e-3, standard error 1e-3.
        ((0.003, 0.001), True),
        ((-0.004, -0.002), False),
    ],
)
def test_two_standard_errors_or_a_thousandth(values: tuple[float, ...], holds: bool) -> None:
    assert fig6.agrees(Estimate(values)) is holds


def test_verdicts() -> None:
    plain = outcome(series({"torchrec": (0.2, 0.2), "sync": (0.2, 0.2), "nestpipe": (0.21, 0.21)}))
    equal = outcome(series({"sync": (0.2, 0.2), "nestpipe": (0.2, 0.2)}))
    found = {verdict.name: verdict for verdict in fig6.verdicts(plain, equal)}
    assert found["float64-top-items"].holds
    assert "0, 0 of 3 users differ in their 50 best items: equal" in found["float64-top-items"].text
    assert not found["float32-against-sync"].holds
    assert "all but hr@10, hr@50" in found["float32-against-torchrec"].text


def test_one_differing_list_in_float64_is_told() -> None:
    first = training("sync", (0.2,), ranks=(1, 2), first_items=(1, 1))
    second = training("nestpipe", (0.2,), ranks=(1, 2), first_items=(1, 2))
    plain = outcome(series({"torchrec": (0.2,), "sync": (0.2,), "nestpipe": (0.2,)}))
    verdict = fig6.verdicts(plain, outcome([launched(0, first, second)]))[0]
    assert not verdict.holds
    assert "1 of 2 users" in verdict.text


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(reproduce, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table2", "--quick"], "--quick is for fig6 alone"),
        (["all", "--set", "model=hstu"], "--set is for fig6 alone"),
        (["table2", "--force"], "--force is for fig6 alone, not for table2"),
        (["fig6", "--steps", "3"], "--steps is not for fig6"),
        (["fig6", "--evidence", "simulated"], "--evidence is not for fig6"),
        (["fig6", "--seeds", "0"], "--seeds"),
        (["fig6", "--model", "dlrm"], "fuxi"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = invoke(*arguments, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert message in result.output


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TrainingJob]:
    """Reports come from here; what was asked for is kept."""
    jobs: list[TrainingJob] = []

    def launch(function: object, job: TrainingJob, num_workers: int) -> list[TrainingReport]:
        jobs.append(job)
        methods = tuple(training(name, (0.1, 0.2 + job.seed), ranks=(1, 20)) for name in job.methods)
        return [TrainingReport(0, 64, methods)] * num_workers

    monkeypatch.setattr(experiment, "launch_function", launch)
    monkeypatch.setattr(experiment, "check", lambda *arguments: 1)
    return jobs


def test_quick_trains_in_float32_and_the_engine_in_float64(asked: list[TrainingJob], tmp_path: Path) -> None:
    result = invoke("fig6", "--quick", "--out", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    assert [(job.settings.training.dtype, job.seed) for job in asked] == [
        (dtype, seed) for dtype in ("float32", "float64") for seed in range(3)
    ]
    assert {job.num_epochs for job in asked} == {5}
    assert asked[0].methods[:4] == ("torchrec", "2d-sp", "uniemb", "nestpipe")
    assert asked[0].settings.method == {"replicas": 2}
    assert asked[0].settings.workload == {"model": "fuxi"}
    assert asked[-1].methods == ("sync", "nestpipe")
    document = json.loads(result.output.splitlines()[-1])
    assert document == json.loads((tmp_path / "fig6.json").read_text())
    assert document["reproduced"] is False
    assert set(document["verdicts"].values()) == {True}
    assert {path.name for path in tmp_path.glob("fig6.*")} == {"fig6.json", "fig6.png", "fig6.svg"}
    assert "none of them is reproduced here" in result.output


def test_settings_and_numbers_can_be_given(asked: list[TrainingJob], tmp_path: Path) -> None:
    arguments = ["--epochs", "2", "--seeds", "1", "--set", "replicas=1", "--set", "dense_lr=0.1"]
    result = invoke("fig6", *arguments, "--no-figures", "--model", "hstu", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert len(asked) == 2
    assert (asked[0].num_epochs, asked[0].settings.method) == (2, {"replicas": 1})
    assert asked[0].settings.training.dense_lr == asked[1].settings.training.dense_lr == 0.1
    assert not list(tmp_path.glob("*.png"))


def test_an_earlier_document_is_overwritten_by_force_alone(asked: list[TrainingJob], tmp_path: Path) -> None:
    document = tmp_path / "fig6.json"
    document.write_text("of five seeds")
    arguments = ["fig6", "--quick", "--no-figures", "--out", str(tmp_path)]
    refused = invoke(*arguments)
    assert refused.exit_code == 1
    way_out = "--force overwrites it, or name another folder with --out FOLDER"
    assert f"Error: {document} exists; {way_out}" in refused.output
    assert (document.read_text(), asked) == ("of five seeds", [])
    assert invoke(*arguments, "--dry-run").exit_code == 0
    assert document.read_text() == "of five seeds"
    assert invoke(*arguments, "--force").exit_code == 0
    assert json.loads(document.read_text())["item"] == "fig6"


def test_a_failed_launch_ends_it(
    monkeypatch: pytest.MonkeyPatch, asked: list[TrainingJob], tmp_path: Path
) -> None:
    def fail(function: object, job: TrainingJob, num_workers: int) -> list[TrainingReport]:
        raise LaunchError("rank 1 of 2 ended with exit code 9")

    monkeypatch.setattr(experiment, "launch_function", fail)
    result = CliRunner().invoke(reproduce, ["fig6", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "Error: rank 1 of 2 ended with exit code 9" in result.output
