"""Learning-rate factors, value by value."""

from __future__ import annotations

from typing import Any

import pytest

from nestpipe.lr import Constant, LrFactor, StepDecay, WarmupCosine, WarmupLinear


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (Constant(), [1, 1, 1]),
        (Constant(0.5, warmup_steps=4), [0.125, 0.25, 0.375, 0.5, 0.5]),
        (WarmupLinear(2, 6), [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0]),
        (WarmupLinear(0, 2, final=0.5), [1, 0.75, 0.5, 0.5]),
        (WarmupCosine(1, 5), [1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0, 0]),
        (WarmupCosine(0, 2, final=0.2), [1, 0.6, 0.2, 0.2]),
        (StepDecay(2, 0.1, warmup_steps=1), [1, 1, 0.1, 0.1, 0.01]),
    ],
    ids=str,
)
def test_factors(factor: LrFactor, expected: list[float]) -> None:
    assert [factor(step) for step in range(len(expected))] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (Constant, {"factor": -1.0}, "factor must be >= 0"),
        (Constant, {"warmup_steps": -1}, "warmup_steps must be >= 0"),
        (WarmupLinear, {"warmup_steps": 5, "total_steps": 5}, "total_steps must be more than warmup_steps=5"),
        (WarmupCosine, {"warmup_steps": 0, "total_steps": 9, "final": -0.1}, "final must be >= 0"),
        (StepDecay, {"every_steps": 0, "gamma": 0.5}, "every_steps must be at least 1, got 0"),
        (StepDecay, {"every_steps": 1, "gamma": float("nan")}, "gamma must be >= 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(kind: type, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**arguments)
