"""Gains, verdicts and doubts from the cells of a sweep, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.sweep.journal import Measurement, Provenance, open_journal
from harness.sweep.ladder import Rung, as_document, doubts, ladder
from harness.sweep.plan import Cell, Sweep
from harness.sweep.run import Measure, TimeLeft, run_missing
from tests.harness.sweep.fakes import PROVENANCE, fake_measure, fake_sweep, measurement, no_estimate


def measured(
    folder: Path, sweep: Sweep, measure: Measure = fake_measure, provenance: Provenance = PROVENANCE
) -> list[Rung]:
    with open_journal(folder) as journal:
        run_missing(sweep, journal, measure, provenance, no_estimate(sweep, journal), lambda text: None)
        return ladder(sweep, journal)


def test_a_gain_is_paired_by_round_so_that_drift_cancels(tmp_path: Path) -> None:
    rungs = measured(tmp_path, fake_sweep(workers=(2,)))
    sync, dbp, fwp, nestpipe = rungs
    assert (sync.verdict, sync.gain, sync.total_gain) == ("first", None, None)
    assert sync.step_ms is not None
    assert (sync.step_ms.median, sync.step_ms.low, sync.step_ms.high) == pytest.approx((22.0, 20.0, 24.2))
    assert dbp.gain is not None
    assert (dbp.gain.low, dbp.gain.median, dbp.gain.high) == pytest.approx((1.25, 1.25, 1.25))
    assert dbp.verdict == "faster"
    # It failed in one round of three: its gain is of the other two.
    assert (fwp.verdict, fwp.rounds) == ("partly failed", 2)
    assert fwp.gain is not None
    assert fwp.gain.median == pytest.approx(8.0 / 8.01)
    assert "Tuesdays" in fwp.error
    assert nestpipe.verdict == "slower"
    assert nestpipe.total_gain is not None
    assert nestpipe.total_gain.median == pytest.approx(10.0 / 9.0)
    assert nestpipe.parts_ms["dense_ms"] == pytest.approx(0.5 * 9.0 * 1.1 * 2)


def steps_of(**step_ms: list[float]) -> Measure:
    def measure(cell: Cell) -> Measurement:
        return measurement(step_ms.get(cell.method, [10.0] * 3)[cell.round])

    return measure


@pytest.mark.parametrize(
    ("step_ms", "verdict"),
    [
        ([9.0, 9.5, 9.7], "faster"),
        ([9.0, 9.0, 10.1], "flat"),  # one round disagrees
        ([9.9, 9.9, 9.9], "flat"),  # too small
        ([10.3, 11.0, 10.2], "slower"),
        ([10.0, 10.0, 10.0], "flat"),
    ],
)
def test_a_verdict_needs_all_rounds_and_an_effect(tmp_path: Path, step_ms: list[float], verdict: str) -> None:
    assert measured(tmp_path, fake_sweep(workers=(1,)), steps_of(dbp=step_ms))[1].verdict == verdict


def test_one_round_has_no_verdict(tmp_path: Path) -> None:
    rungs = measured(tmp_path, fake_sweep(1, (1,)), steps_of(dbp=[5.0]))
    assert [rung.verdict for rung in rungs] == ["first", "one round", "one round", "one round"]


def test_throughput_counts_where_a_step_changes_the_batch(tmp_path: Path) -> None:
    def measure(cell: Cell) -> Measurement:
        twice = cell.method == "dbp"
        return replace(
            measurement(15.0 if twice else 10.0), batch_size=128 if twice else 64, qps=1.6 if twice else 1.2
        )

    gain = measured(tmp_path, fake_sweep(workers=(1,)), measure)[1].gain
    assert gain is not None
    assert gain.median == pytest.approx(1.6 / 1.2)


def test_what_is_not_exact_has_no_gain(tmp_path: Path) -> None:
    def measure(cell: Cell) -> Measurement:
        return measurement(5.0, "FAILED" if cell.method == "dbp" and cell.round == 2 else "bitwise")

    rungs = measured(tmp_path, fake_sweep(workers=(1,)), measure)
    assert [rung.verdict for rung in rungs] == ["first", "not exact", "no base", "flat"]
    assert rungs[1].gain is None
    assert rungs[1].total_gain is None
    assert rungs[1].exactness == "FAILED"


def test_a_step_that_always_fails_leaves_the_next_without_a_base(tmp_path: Path) -> None:
    def measure(cell: Cell) -> Measurement:
        if cell.method == "dbp":
            raise MemoryError
        return measurement(10.0)

    rungs = measured(tmp_path, fake_sweep(workers=(1,)), measure)
    assert [rung.verdict for rung in rungs] == ["first", "failed", "no base", "flat"]
    assert rungs[1].error == "MemoryError:"
    assert rungs[2].total_gain is not None


def test_doubts_name_mixed_code_and_foreign_cells(tmp_path: Path) -> None:
    measured(tmp_path, fake_sweep(1, (1,)))
    sweep = fake_sweep(2, (1,))
    elsewhere = replace(PROVENANCE, commit="1" * 40, machine={"cpu": "other"})
    measured(tmp_path, sweep, provenance=elsewhere)
    with open_journal(tmp_path) as journal:
        remarks = doubts(sweep, journal, ladder(sweep, journal))
        assert any("2 commits (0000000, 1111111)" in remark for remark in remarks)
        assert any("2 machines" in remark for remark in remarks)
        assert any("fwp at 1 workers: ValueError" in remark for remark in remarks)
        shorter = replace(sweep, steps=sweep.steps[:2])
        assert any("4 cells" in remark for remark in doubts(shorter, journal, []))
        assert len(as_document(shorter, journal, ladder(shorter, journal), "measured")["cells"]) == 4


def test_time_left_is_from_the_steps_own_rounds_then_from_the_estimate(tmp_path: Path) -> None:
    sweep = fake_sweep(2, (1,))
    cells = [cell for _, cell in sweep.cells()]
    with open_journal(tmp_path) as journal:
        nothing = TimeLeft(sweep, journal, lambda cell: None)
        assert nothing.seconds(cells) is None
        assert TimeLeft(sweep, journal, lambda cell: 2.0).seconds(cells) == 16.0
        run_missing(
            replace(sweep, num_rounds=1, steps=sweep.steps[:1]),
            journal,
            fake_measure,
            PROVENANCE,
            nothing,
            print,
        )
        journal._rows = {key: replace(row, seconds=5.0) for key, row in journal._rows.items()}
        assert TimeLeft(sweep, journal, lambda cell: 2.0).seconds(cells[1:]) == 6 * 2.0 + 5.0
        assert nothing.seconds(cells[1:]) == 7 * 5.0
