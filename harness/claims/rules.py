"""When a value of ours agrees with the paper's, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.paper import PaperCell

if TYPE_CHECKING:
    from harness.claims.claim import Claim

HOLDS = "holds"
FAILS = "fails"
NOT_TESTABLE = "not testable here"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Rule:
    """How far a value is off. It agrees where that is nothing, or at most the tolerance."""

    meaning: str
    error: Callable[[PaperCell, float], float | None]
    """Signed; None where there is nothing to be off from, such as a bound that holds."""
    needs_bound: bool = False
    """Whether it is for a stated bound, such as >90%, and not for a figure."""


RULES: Mapping[str, Rule] = {
    "within": Rule(
        "within the tolerance, a fraction, of the values that round to the printed one",
        lambda cell, ours: cell.relative_error(ours),
    ),
    "bound": Rule("keeps the stated bound", lambda cell, ours: cell.relative_error(ours), needs_bound=True),
    "magnitude": Rule(
        "keeps the stated bound, the sign left out",
        lambda cell, ours: cell.relative_error(abs(ours)),
        needs_bound=True,
    ),
    "equal": Rule("equal up to the tolerance, in the value's own unit", lambda cell, ours: ours - cell.value),
}


@dataclass(frozen=True)
class Judgement:
    """What a value says of a claim."""

    verdict: str
    error: float | None


def judge(claim: Claim, evidence: str, ours: float | None) -> Judgement:
    """The verdict of one kind of evidence alone; a test that brought no finite value fails."""
    error = None if ours is None else RULES[claim.rule].error(claim.paper, ours)
    if evidence not in claim.tests:
        return Judgement(NOT_TESTABLE, error)
    agrees = ours is not None and (error is None or abs(error) <= claim.tests[evidence])
    return Judgement(HOLDS if agrees else FAILS, error)
