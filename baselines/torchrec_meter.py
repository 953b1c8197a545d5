"""Exposed time of TorchRec's step: what the one thread that runs it spends on lookup, comm and dense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from baselines.interface import StepTimes
from baselines.torchrec_hooks import Point

_LOOKUP, _COMM, _DENSE = range(3)
_PART = {
    Point.PREFETCH: _LOOKUP,
    Point.ROUTE: _LOOKUP,
    Point.RETRIEVE: _LOOKUP,
    Point.WRITE_BACK: _LOOKUP,
    Point.EXCHANGE: _COMM,
    Point.REDUCE: _COMM,
    Point.REPLICAS: _COMM,
}


class StepMeter:
    """An exclusive timer: each moment inside `step` belongs to the innermost point, or to dense.

    TorchRec runs a step on the caller's thread (on a CPU its backward too), so what that thread spends
    is exposed by definition. A step lasts from the previous step's end, or from its own begin after
    `restart`; what the caller does between two steps is in the step's total but in none of its parts.
    """

    def __init__(self) -> None:
        self._parts = [_DENSE]
        self._spent_ns = [0, 0, 0]
        self._since_ns = 0
        self._last_end_ns: int | None = None
        self._steps: list[StepTimes] = []

    def enter(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        """Charge the time since the last change to the part that is left for `point`'s."""
        self._charge()
        self._parts.append(_PART[point])

    def leave(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        """Charge the time since the last change to `point`'s part."""
        self._charge()
        self._parts.pop()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step; a step that raises leaves no entry, and the next one starts afresh."""
        self._parts = [_DENSE]
        self._spent_ns = [0, 0, 0]
        self._since_ns = perf_counter_ns()
        begin_ns = self._since_ns if self._last_end_ns is None else self._last_end_ns
        self._last_end_ns = None
        yield
        self._charge()
        assert len(self._parts) == 1, "a point of the step was entered and not left"
        step_ms = (self._since_ns - begin_ns) / 1e6
        self._steps.append(StepTimes(step_ms, *(spent / 1e6 for spent in self._spent_ns)))
        self._last_end_ns = self._since_ns

    def restart(self) -> None:
        """Do not count the time until the next step's begin."""
        self._last_end_ns = None

    def take(self) -> list[StepTimes]:
        """Steps since the last call, which are forgotten."""
        steps, self._steps = self._steps, []
        return steps

    def _charge(self) -> None:
        now_ns = perf_counter_ns()
        self._spent_ns[self._parts[-1]] += now_ns - self._since_ns
        self._since_ns = now_ns
