"""The classes of exactness that a method can promise, and the most that each of them allows."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from baselines.interface import Exactness
from harness.conformance.subject import Violation

_STALE_KIND = re.compile(r"stale by ([1-9]\d*)")
_STALE = "stale by N"


@dataclass(frozen=True)
class ExactnessClass:
    """What a kind of exactness means in figures, which are those of `Exactness.tolerance`."""

    float32: float = math.inf
    """Infinite where a difference says nothing: that of stale rows is no rounding."""
    float64: float | None = None
    """Where rounding is the only reason for a difference: what is left of it in float64."""


CLASSES = {
    "bitwise": ExactnessClass(0.0),
    "reordered": ExactnessClass(2e-6, 1e-12),
    "library": ExactnessClass(1e-5),
    _STALE: ExactnessClass(),
    "approximate": ExactnessClass(),
}


def class_of(promise: Exactness) -> ExactnessClass:
    """The class that is promised; Violation for one that there is not, or a tolerance wider than it."""
    kind = _STALE if _STALE_KIND.fullmatch(promise.kind) else promise.kind
    if kind not in CLASSES or promise.kind == _STALE:
        raise Violation(f"there is no exactness {promise.kind!r}, only {', '.join(CLASSES)}")
    allowed, tolerance = CLASSES[kind], promise.tolerance
    is_within = math.isinf(allowed.float32) if tolerance is None else 0 <= tolerance <= allowed.float32
    if not is_within:
        span = f"0 to {allowed.float32:g}" if allowed.float32 else "0"
        raise Violation(f"{promise.kind} allows a tolerance of {span}, not {tolerance}")
    return allowed


def allowed_staleness(promise: Exactness | None) -> int:
    """Steps that a row may be stale when it is read."""
    stale = None if promise is None else _STALE_KIND.fullmatch(promise.kind)
    return int(stale[1]) if stale else 0
