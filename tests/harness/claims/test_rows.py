"""Verdicts on disk: read as they were written, the newest counts, and what is damaged or newer is named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness import paper
from harness.claims.claim import load
from harness.claims.recorded import rows_from
from harness.claims.report import lines_of
from harness.claims.rows import ROWS_FILE, ClaimRow, latest, make_row, new_header, read, save, save_new
from harness.claims.rules import FAILS, HOLDS
from harness.reproduce import items
from harness.reproduce.cells import make_cells
from harness.reproduce.rows import new_reproduction
from harness.reproduce.rows import save as save_cells
from tests.harness.reproduce.formula import FormulaSource

CATALOGUE = load()
[WANTED] = CATALOGUE.choose(["speedup-nestpipe-1536"], ["emulated"])


def row(ours: float, time: str = "2026-01-01T00:00:00+00:00") -> ClaimRow:
    made = make_row(new_header(), CATALOGUE, WANTED, ours, settings={"steps": 3}, seconds=1.5)
    return replace(made, time=time)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [row(3.0), row(1.0)]
    save(tmp_path, rows)
    assert read(tmp_path) == rows
    assert [each.verdict for each in rows] == [HOLDS, FAILS]
    assert read(tmp_path / "empty") == []


def test_the_newest_counts_wherever_it_lies(tmp_path: Path) -> None:
    save(tmp_path / "a", [row(3.0, "2026-03-01T00:00:00+00:00")])
    save(tmp_path / "b", [row(1.0, "2026-02-01T00:00:00+00:00")])
    assert latest([tmp_path / "a", tmp_path / "b"])[WANTED.claim.id, "emulated"].ours == 3.0


def test_a_verdict_is_by_todays_tolerance() -> None:
    kept = replace(row(3.0), tolerance=1e-9, verdict=FAILS)
    [line] = [each for each in lines_of(CATALOGUE, {(kept.claim, "emulated"): kept}) if each.row is not None]
    assert line.verdict == HOLDS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(asdict(row(3.0)))[:200], "cut short or damaged"),
        (json.dumps(asdict(row(3.0)) | {"schema": 2}), "schema 2 is newer than 1.*update this checkout"),
        (json.dumps({"claim": "x"}), "missing"),
        (json.dumps(asdict(row(3.0)) | {"ours": "many"}), "'ours' cannot be 'many'"),
    ],
)
def test_what_is_no_row_is_named_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    save(tmp_path, [row(3.0)])
    with (tmp_path / ROWS_FILE).open("a") as file:
        file.write(text)
    with pytest.raises(ValueError, match=message) as raised:
        read(tmp_path)
    assert f"{ROWS_FILE}:2" in str(raised.value)


def test_what_a_reproduction_has_measured_is_judged_once(tmp_path: Path) -> None:
    source, [item] = FormulaSource(), items.get("table2")
    measurements = source.measure(item.runs)
    reproduction = new_reproduction(source)
    cells = make_cells(item, measurements, paper.load("table2"), "emulated")
    save_cells(tmp_path, reproduction, cells, measurements)
    wanted = CATALOGUE.choose(["step-*-1536", "speedup-*", "equal-*"], ["emulated", "simulated", "measured"])
    rows = rows_from(tmp_path, CATALOGUE, wanted)
    assert {(each.claim, each.evidence) for each in rows} == {
        (f"step-{method}-1536", "emulated") for method in items.METHODS
    }
    assert {each.run_id for each in rows} == {reproduction.run_id}
    [nestpipe] = [each for each in rows if each.claim == "step-nestpipe-1536"]
    assert nestpipe.ours == next(c.ours for c in cells if (c.row, c.metric) == ("nestpipe", "step_ms"))
    save_new(tmp_path / "claims", rows)
    save_new(tmp_path / "claims", rows)
    assert read(tmp_path / "claims") == rows


def test_a_folder_without_figures_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reproduce all"):
        rows_from(tmp_path, CATALOGUE, [WANTED])
    with pytest.raises(ValueError, match="no such folder"):
        rows_from(tmp_path / "none", CATALOGUE, [WANTED])
    (tmp_path / "fig6.json").write_text("{")
    with pytest.raises(ValueError, match="run it again"):
        rows_from(tmp_path, CATALOGUE, CATALOGUE.choose(["accuracy-*"], ["measured"]))
