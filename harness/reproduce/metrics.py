"""The columns of the paper's tables, as formulas over measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.emulation.profiles import PAPER_DENSE_MS
from harness.reproduce.measured import Measured

SAMPLES_PER_WORKER = 512
"""The paper's batch of one worker."""
QPS_UNIT = 1e5
"""The paper prints QPS in 1e5 samples/s."""


@dataclass(frozen=True)
class Comparison:
    """One measurement, with those that its cells are relative to."""

    measured: Measured
    num_workers: int
    base: Measured
    """The method that speedups and shares are of, at the same size."""
    smallest: Measured
    """The same method at the smallest size of the sweep."""
    scale: float
    """Milliseconds of the paper's step that one of ours stands for."""


@dataclass(frozen=True)
class Value:
    """A cell's two values; None where a formula has nothing to divide by or no meaning."""

    ours: float | None
    modelled: float | None = None
    """With the cost model in the place of the base, or of the step's real overhead."""


def scale_of(measured: Measured) -> float:
    """What a millisecond of this run stands for, so that its modelled dense time is the paper's."""
    return PAPER_DENSE_MS / measured.modelled_dense_ms


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _step(c: Comparison) -> Value:
    m = c.measured
    return Value(c.scale * m.step_ms, c.scale * (m.step_ms - m.real_overhead_ms))


def _speedup(c: Comparison) -> Value:
    step_ms = c.measured.step_ms
    return Value(c.base.step_ms / step_ms, c.base.modelled_step_ms / step_ms)


def _qps(c: Comparison) -> Value:
    step_s = c.scale * c.measured.step_ms / 1e3
    return Value(c.num_workers * SAMPLES_PER_WORKER / step_s / QPS_UNIT)


def _efficiency(c: Comparison) -> Value:
    # QPS(W) / (QPS(W0) W / W0): workers and samples cancel out, scaled steps remain.
    smallest_ms = scale_of(c.smallest) * c.smallest.step_ms
    return Value(smallest_ms / (scale_of(c.measured) * c.measured.step_ms))


def _lookup_removed(c: Comparison) -> Value:
    left = _ratio(c.measured.lookup_ms, c.base.lookup_ms)
    return Value(None if left is None else 1 - left)


METRICS: Mapping[str, Callable[[Comparison], Value]] = {
    "step_ms": _step,
    "speedup": _speedup,
    "lookup_ms": lambda c: Value(c.scale * c.measured.lookup_ms),
    "comm_ms": lambda c: Value(c.scale * c.measured.comm_ms),
    "dense_ms": lambda c: Value(c.scale * c.measured.dense_ms),
    "other_ms": lambda c: Value(c.scale * c.measured.other_ms),
    "total_comm_ms": lambda c: Value(c.scale * c.measured.total_comm_ms),
    "exposed_comm_ms": lambda c: Value(c.scale * c.measured.comm_ms),
    "exposed_share": lambda c: Value(_ratio(c.measured.comm_ms, c.measured.total_comm_ms)),
    "qps": _qps,
    "efficiency": _efficiency,
    "utilisation": lambda c: Value(c.measured.modelled_dense_ms / c.measured.step_ms),
    "lookup_share": lambda c: Value(c.measured.lookup_ms / c.measured.step_ms),
    "comm_share": lambda c: Value(c.measured.comm_ms / c.measured.step_ms),
    "saved_ms": lambda c: Value(c.scale * (c.base.step_ms - c.measured.step_ms)),
    "lookup_removed": _lookup_removed,
    "comm_left": lambda c: Value(_ratio(c.measured.comm_ms, c.base.comm_ms)),
}
"""By column. Utilisation and shares are of the step, `exposed_share` of its busy communication, `*_removed`
and `*_left` of the base's exposed time."""

UNITS: Mapping[str, str] = {"speedup": "x", "qps": "1e5 samples/s"}


def unit_of(metric: str) -> str:
    """The unit of a metric's values: ms, x, 1e5 samples/s or fraction."""
    return UNITS.get(metric, "ms" if metric.endswith("_ms") else "fraction")
