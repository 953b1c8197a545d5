"""Verdicts: one kind of evidence at a time, and only by kinds that can decide."""

from __future__ import annotations

import pytest

from harness.claims.claim import Claim
from harness.claims.rules import FAILS, HOLDS, NOT_TESTABLE, judge
from harness.paper import PaperCell


def claim(rule: str, printed: str, tolerance: float) -> Claim:
    return Claim(
        id="one",
        text="One is claimed.",
        experiment="table2",
        row="nestpipe",
        column="speedup",
        paper=PaperCell("nestpipe", "speedup", printed, "T"),
        source="",
        rule=rule,
        tests={"emulated": tolerance},
        closest=("simulated",),
        why="it is no test",
    )


@pytest.mark.parametrize(
    ("rule", "printed", "tolerance", "ours", "verdict"),
    [
        # Within half a unit of the last digit there is no error: 3.055 to 3.065.
        ("within", "3.06x", 0.05, 3.065 * 1.049, HOLDS),
        ("within", "3.06x", 0.05, 3.065 * 1.051, FAILS),
        ("within", "3.06x", 0.05, 3.055 * 0.951, HOLDS),
        ("within", "3.06x", 0.05, 3.055 * 0.949, FAILS),
        ("within", "98%", 0.1, 0.9998, HOLDS),
        ("bound", ">90%", 0.0, 0.9001, HOLDS),
        ("bound", ">90%", 0.0, 0.8999, FAILS),
        ("bound", "<2", 0.0, 1.9, HOLDS),
        ("magnitude", "<0.3e-3", 0.0, -0.0002, HOLDS),
        ("magnitude", "<0.3e-3", 0.0, -0.0004, FAILS),
        ("equal", "0", 2e-6, 1.9e-6, HOLDS),
        ("equal", "0", 2e-6, 2.1e-6, FAILS),
        ("equal", "0", 0.0, 0.0, HOLDS),
        ("equal", "0", 0.0, 1e-30, FAILS),
        ("equal", "1", 0.0, 0.0, FAILS),
        ("equal", "0", 1.0, None, FAILS),
    ],
)
def test_a_rule_draws_its_line(
    rule: str, printed: str, tolerance: float, ours: float | None, verdict: str
) -> None:
    assert judge(claim(rule, printed, tolerance), "emulated", ours).verdict == verdict


def test_the_closest_evidence_decides_nothing_and_still_says_how_far_it_is() -> None:
    judgement = judge(claim("within", "2.0", 0.1), "simulated", 4.1)
    assert judgement.verdict == NOT_TESTABLE
    assert judgement.error == pytest.approx(1.0)
