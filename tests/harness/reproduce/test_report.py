"""Everything that a reproduction leaves: tables, rows, raw steps, figures and JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from harness.reproduce import items
from harness.reproduce.measured import Measured, Run
from harness.reproduce.report import doubts, reproduce
from harness.reproduce.rows import ReproducedRow
from harness.reproduce.tables import table, verdict
from tests.harness.reproduce.formula import NUM_STEPS, FormulaSource, measured

TABLE2 = items.get("table2")


def test_json_is_one_last_line_with_every_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = (*TABLE2, *items.get("fig8"))
    reproduce(chosen, FormulaSource(), tmp_path, as_json=True)
    cells = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    assert [cell["item"] for cell in cells] == ["table2"] * 32 + ["fig8"] * 20
    assert {cell["evidence"] for cell in cells} == {"emulated"}
    assert all(cell["mark"] in ("T", "S", "D") for cell in cells if cell["paper"] is not None)


def test_rows_and_raw_steps_are_appended(tmp_path: Path) -> None:
    for _ in range(2):
        reproduce(TABLE2, FormulaSource(), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "reproduce.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 32
    assert list(rows[0]) == [field.name for field in fields(ReproducedRow)]
    assert len({row["run_id"] for row in rows}) == 2
    first = rows[0]
    assert first["evidence"] == "emulated"
    assert first["settings"] == {"num_workers": 2, "steps": NUM_STEPS}
    assert first["machine"]["cores"] >= 1
    assert (first["row"], first["column"], first["unit"]) == ("torchrec", "step_ms", "ms")
    steps = tmp_path / f"steps-{first['run_id']}.jsonl"
    runs = [json.loads(line) for line in steps.read_text().splitlines()]
    assert [run["method"] for run in runs] == [run.method for run in TABLE2[0].runs]
    assert all(len(run["step_samples_ms"]) == NUM_STEPS for run in runs)


def test_every_run_is_measured_once(tmp_path: Path) -> None:
    source = FormulaSource()
    reproduce((*TABLE2, *items.get("table4")), source, tmp_path)
    assert len(source.asked) == len(set(source.asked))


def test_a_person_reads_paper_ours_error_and_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce((*TABLE2, *items.get("fig8")), FormulaSource(), tmp_path)
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if line.split()[:1] == ["uniemb"])
    assert line.split()[1:6] == ["2919.76", "[T]", "2966.56", "2952.84", "+1.6%"]
    # UniEmb's lookup is where a declared constant decides: marked as no prediction.
    assert "-17.1%*" in line
    assert "16 cells are shown only: the paper has none there" in shown
    assert "held out: 7 cells" in shown
    assert ">90% [S]" in shown
    assert "holds" in shown
    assert "table2: Step latency, 1,536 workers (emulated, " in shown


def test_columns_that_would_stay_empty_are_left_out(tmp_path: Path) -> None:
    cells = reproduce(items.get("fig10"), FormulaSource(), tmp_path)
    heads = [str(column.header) for column in table("fig10", cells).columns]
    assert heads[:2] == ["row", "at"]
    assert heads[2:] == [
        "step_ms\nours",
        "\nmodelled",
        "speedup\nours",
        "\nmodelled",
        "exposed_comm_ms\npaper",
        "\nours",
        "\nerror",
    ]
    assert any(line.startswith("held out: 1 cells") for line in verdict(cells))


def remarks(**changes: Any) -> str:
    base = {run: measured(run) for run in TABLE2[0].runs}
    nest = items.plain("nestpipe")
    changed: dict[Run, Measured] = base | {nest: replace(base[nest], **changes)}
    return "\n".join(doubts(TABLE2[0], changed))


def test_doubts_are_told() -> None:
    assert remarks().startswith("real overhead: at most 0.8% of a step (nestpipe-2d on paper-npu-1536)")
    assert "only 3 steps measured" in remarks(step_samples_ms=(1.0, 1.0, 1.0))
    wide = remarks(step_samples_ms=(1.0,) * 8 + (2.0,) * 8)
    assert "spans more than 30% of the median: nestpipe on paper-npu-1536" in wide
    assert "of a step is unexplained: nestpipe on paper-npu-1536" in remarks(other_ms=-60.0)
