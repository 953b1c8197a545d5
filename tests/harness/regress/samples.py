"""References and launches that tests compare; small, and made without measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.regress.experiment import Experiment
from harness.regress.reference import Counter, Reference, TimedLaunch, Times, Update

COUNTERS = (
    Counter("count/sync/rows read", 92.0, "rows a step"),
    Counter("count/sync/peak tensors", 1000.0, "bytes", 0.1),
    Counter("simulated/sync/paper-npu-128/step", 31.5, "ms", 1e-6),
)
HISTORY = (Update("2026-11-30T00:00:00+00:00", "0123456789abcdef", False, "the first", "counters"),)
MACHINE = {"cpu": "x", "cores": 2, "memory_bytes": 1, "os": "Linux"}
VERSIONS = {"python": "3.11.1", "torch": "2.13.0", "nestpipe": "0.1.0"}


def launches(num: int, *, slower: float = 1.0, ops: float = 1.0, seed: int = 0) -> tuple[TimedLaunch, ...]:
    """Of one method with two ops, `update` a twentieth of its step."""
    generator = np.random.default_rng(seed)

    def rounds(center: float) -> list[float]:
        return (center * generator.lognormal(0, 0.01, 6)).tolist()

    return tuple(
        TimedLaunch(
            100.0,
            {"sync": rounds(0.6 * slower)},
            {"sync": {"compute": rounds(0.5), "update": rounds(0.03 * ops)}},
        )
        for _ in range(num)
    )


def times(found: Sequence[TimedLaunch], **changes: Any) -> Times:
    """Launches of one machine."""
    return replace(Times(MACHINE, VERSIONS, tuple(found)), **changes)


def reference(timed: Times | None = None) -> Reference:
    """A reference of three counters."""
    return Reference(Experiment(), COUNTERS, timed, HISTORY)
