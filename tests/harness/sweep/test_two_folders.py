"""`nestpipe compare`: ratios of known steps, what cannot be compared, and broken folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.job import Job
from harness.options import Settings
from harness.results import RESULTS_FILE, Run, new_run, save
from harness.summary import summarise
from tests.harness.fakes import fake_job
from tests.harness.test_measurement import method_report, worker_reports


def steps(median_ms: float, seed: int, num_steps: int = 31) -> list[float]:
    """Skewed steps around a median."""
    noise = np.random.default_rng(seed).lognormal(0.0, 0.05, num_steps)
    return list(median_ms * noise / np.median(noise))


def run(folder: Path, step_ms: Sequence[float], job: Job | None = None, **changes: object) -> Run:
    """What `nestpipe run` leaves of a method on two workers, the second being the slower one."""
    reports = worker_reports(method_report([0.5 * each for each in step_ms]), method_report(list(step_ms)))
    started = replace(new_run(job or fake_job("sync")), **changes)  # type: ignore[arg-type]
    save(folder, started, summarise(reports, checked=False), reports)
    return started


def compare(a: Path, b: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["compare", str(a), str(b), *options])


def comparisons(a: Path, b: Path) -> list[dict]:
    result = compare(a, b, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["schema"] == 1
    return document["comparisons"]


@pytest.mark.parametrize(
    ("factor", "verdict"), [(0.8, "faster"), (1.25, "slower"), (1.0, "same"), (1.03, "same"), (0.97, "same")]
)
def test_the_ratio_is_of_medians_and_needs_an_effect(tmp_path: Path, factor: float, verdict: str) -> None:
    run(tmp_path / "a", steps(10.0, 1))
    run(tmp_path / "b", steps(10.0 * factor, 2))
    (line,) = comparisons(tmp_path / "a", tmp_path / "b")
    assert (line["method"], line["workers"], line["verdict"]) == ("sync", 2, verdict)
    assert line["a_ms"] == pytest.approx(10.0)
    assert line["ratio"] == pytest.approx(factor)
    low, high = line["interval"]
    assert 0.93 * factor < low < factor < high < 1.07 * factor
    assert line["a_p10_p90"] == pytest.approx(np.percentile(steps(10.0, 1), [10, 90]))


def test_runs_of_one_case_are_pooled(tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1))
    run(tmp_path / "a", steps(12.0, 2))
    run(tmp_path / "b", steps(11.0, 3))
    (line,) = comparisons(tmp_path / "a", tmp_path / "b")
    both = [*steps(10.0, 1), *steps(12.0, 2)]
    assert line["a_ms"] == pytest.approx(np.median(both))


def test_other_settings_are_not_comparable_and_named(tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1), fake_job("sync", settings=Settings(method={"micro_batches": 4})))
    run(tmp_path / "b", steps(5.0, 1), fake_job("sync", settings=Settings(method={"micro_batches": 8})))
    run(tmp_path / "b", steps(5.0, 1), seed=9)
    result = compare(tmp_path / "a", tmp_path / "b")
    assert "not comparable: micro_batches: 4 / 8" in result.stdout
    first, second = comparisons(tmp_path / "a", tmp_path / "b")
    assert (first["verdict"], first["ratio"], second["verdict"]) == ("not comparable", None, "only in B")
    assert comparisons(tmp_path / "b", tmp_path / "a")[1]["verdict"] == "not comparable"


def test_cases_of_one_folder_alone_are_kept(tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1), workload="only-a")
    run(tmp_path / "b", steps(10.0, 1), workload="only-b")
    lines = comparisons(tmp_path / "a", tmp_path / "b")
    assert [(line["workload"], line["verdict"]) for line in lines] == [
        ("only-a", "only in A"),
        ("only-b", "only in B"),
    ]
    assert lines[0]["b_ms"] is None
    assert lines[1]["a_ms"] is None


def test_differences_of_code_and_machine_are_told(tmp_path: Path) -> None:
    first = run(tmp_path / "a", steps(10.0, 1), commit="a" * 40, dirty=False)
    other = {**first.machine, "cpu": "another"}
    run(tmp_path / "b", steps(10.0, 1), commit="b" * 40, dirty=True, machine=other, versions={"torch": "9"})
    output = compare(tmp_path / "a", tmp_path / "b").stdout
    assert "commit: aaaaaaa / bbbbbbb with changes" in output
    assert f"machine's cpu: {first.machine['cpu']} / another" in output
    assert f"version of torch: {first.versions['torch']} / 9" in output
    assert "version of numpy:" in output
    assert "two machines" in output
    assert "machine's cores" not in output


def test_without_raw_steps_there_is_no_verdict(tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1))
    started = run(tmp_path / "b", steps(20.0, 1))
    (tmp_path / "b" / f"steps-{started.run_id}.jsonl").unlink()
    (line,) = comparisons(tmp_path / "a", tmp_path / "b")
    assert (line["verdict"], line["reason"], line["interval"]) == ("unclear", "raw steps are gone", None)
    assert line["ratio"] == pytest.approx(2.0)


def test_what_failed_its_check_has_no_ratio(tmp_path: Path) -> None:
    run(tmp_path / "a", steps(10.0, 1))
    run(tmp_path / "b", steps(5.0, 1))
    file = tmp_path / "b" / RESULTS_FILE
    file.write_text(file.read_text().replace('"unchecked"', '"FAILED"'))
    (line,) = comparisons(tmp_path / "a", tmp_path / "b")
    assert (line["verdict"], line["ratio"]) == ("not exact", None)


def test_bad_folders_get_a_message(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    run(good, steps(10.0, 1))
    bad.mkdir()
    assert "nestpipe run ... --out" in compare(good, bad).stderr
    text = (good / RESULTS_FILE).read_text()
    for content, message in (
        ("", "is empty"),
        (text[:-9], "cut short"),
        (text + text, "two runs have the id"),
        (text.replace('"unit"', '"hue"'), "newer version"),
        (text, "hold the same run"),
    ):
        (bad / RESULTS_FILE).write_text(content)
        result = compare(good, bad)
        assert result.exit_code == 1
        assert message in result.stderr
        assert "Traceback" not in result.output
