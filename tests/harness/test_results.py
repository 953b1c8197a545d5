"""Rows on disk: appended, read back, and named where they are broken."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from harness.exactness import Difference
from harness.results import RESULTS_FILE, Row, new_run, read_results, save
from harness.summary import summarise
from tests.harness.fakes import fake_job
from tests.harness.test_measurement import method_report, worker_reports


def save_one(folder: Path) -> str:
    reports = worker_reports(
        method_report([2.0, 4.0], difference=Difference(0.0, "w")), method_report([2.0, 3.0])
    )
    run = new_run(fake_job("sync"))
    save(folder, run, summarise(reports, checked=True), reports)
    return run.run_id


def test_rows_are_appended_and_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    ids = [save_one(folder), save_one(folder)]
    table = read_results(folder)
    assert list(table.columns) == [field.name for field in fields(Row)]
    assert table.run_id.unique().tolist() == ids
    first = table[table.run_id == ids[0]].set_index("metric")
    assert first.value["step_ms_p50"] == 3.0
    assert first.value["qps"] == pytest.approx(2 * 8 / 3e-3)
    assert first.value["max_difference"] == 0.0
    assert first.unit["qps"] == "samples/s"
    assert set(table.evidence) == {"measured"}
    assert set(table.exactness) == {"reordered"}
    assert first.iloc[0].settings["sparse_optimizer"] == "rowwise_adagrad"
    assert first.iloc[0].machine["cores"] >= 1
    assert "torch" in first.iloc[0].versions


def test_every_raw_step_is_kept(tmp_path: Path) -> None:
    run_id = save_one(tmp_path)
    lines = (tmp_path / f"steps-{run_id}.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [(entry["rank"], entry["step_ms"]) for entry in entries] == [(0, [2.0, 4.0]), (1, [2.0, 3.0])]


def test_a_line_cut_short_does_not_swallow_the_next_and_is_named(tmp_path: Path) -> None:
    save_one(tmp_path)
    path = tmp_path / RESULTS_FILE
    whole = path.read_text()
    path.write_text(whole[:-10])
    save_one(tmp_path)
    broken = whole.count("\n")
    with pytest.raises(ValueError, match=f"{RESULTS_FILE}:{broken}: not a line of JSON"):
        read_results(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"unit": None}, "field 'unit' is missing"), ({"colour": 1}, "field 'colour' is unknown")],
)
def test_a_row_of_another_form_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    save_one(tmp_path)
    path = tmp_path / RESULTS_FILE
    entry = json.loads(path.read_text().splitlines()[0]) | change
    entry = {key: value for key, value in entry.items() if value is not None}
    path.write_text(json.dumps(entry) + "\n")
    with pytest.raises(ValueError, match=f"{RESULTS_FILE}:1: {message}"):
        read_results(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=RESULTS_FILE):
        read_results(tmp_path)
