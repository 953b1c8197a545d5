"""From the steps of every worker to one line a method: quantiles, throughput, exposed times, exactness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.freshness import Freshness, add_up

if TYPE_CHECKING:
    from harness.worker import MethodReport, WorkerReport

UNCHECKED = "unchecked"
FAILED = "FAILED"
WIDE_SPREAD = 0.3


@dataclass(frozen=True)
class Quantiles:
    """10th, 50th and 90th percentile."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class Arbiter:
    """A second training that tells an error from rounding; see `harness.arbiters`."""

    kind: str
    """"float64" or "ulp"."""
    max_difference: float | None
    """float64: of the method from its reference, both in float64; ulp: of the reference from itself."""


@dataclass(frozen=True)
class Verdict:
    """What the run's parameters were compared with, and how it came out."""

    kind: str
    """The promised class, "unchecked" where nothing was compared, or "FAILED"."""
    against: str | None = None
    max_difference: float | None = None
    """Largest difference of any parameter over its largest weight; None where it is not finite."""
    tolerance: float | None = None
    parameter: str | None = None
    """The one that differs most."""
    arbiter: Arbiter | None = None
    """Who was asked because `max_difference` exceeds the tolerance, and confirmed the class or not."""


@dataclass(frozen=True)
class MethodRun:
    """One method at one worker count; times are those of its slowest worker, in milliseconds."""

    method: str
    workers: int
    batch_size: int
    step_ms: Quantiles
    qps: float
    lookup_ms: float
    comm_ms: float
    dense_ms: float
    other_ms: float
    loss: list[float]
    """Mean over the workers, one a measured step."""
    verdict: Verdict
    notes: tuple[str, ...] = ()
    freshness: Freshness | None = None
    """How stale the rows were that it read, where that was counted."""

    def as_json(self) -> dict[str, Any]:
        """The documented form of `--json`; every number finite, or null."""
        arbiter = self.verdict.arbiter
        return {
            "method": self.method,
            "workers": self.workers,
            "batch_size": self.batch_size,
            "step_ms": {"p10": self.step_ms.p10, "p50": self.step_ms.p50, "p90": self.step_ms.p90},
            "qps": self.qps,
            "exposed_ms": {"lookup": self.lookup_ms, "comm": self.comm_ms},
            "dense_ms": self.dense_ms,
            "loss": [finite(loss) for loss in self.loss],
            "exactness": {
                "class": self.verdict.kind,
                "against": self.verdict.against,
                "max_difference": self.verdict.max_difference,
                "arbiter": None if arbiter is None else vars(arbiter).copy(),
            },
            "freshness": None if self.freshness is None else self.freshness.as_json(),
        }


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def summarise(reports: Sequence[WorkerReport], *, checked: bool) -> list[MethodRun]:
    """One MethodRun a method, from the reports of all workers in rank order.

    The slowest worker is the one with the largest median step: the largest of each step over all workers
    would add up the jitter of every one of them.
    """
    return [_summarise(reports, index, checked) for index in range(len(reports[0].methods))]


def _summarise(reports: Sequence[WorkerReport], index: int, checked: bool) -> MethodRun:
    workers = [report.methods[index] for report in reports]
    slowest = max(workers, key=lambda worker: float(np.median(worker.step_ms)))
    step_ms = Quantiles(*(float(value) for value in np.percentile(slowest.step_ms, [10, 50, 90])))
    parts = np.array([slowest.lookup_ms, slowest.comm_ms, slowest.dense_ms])
    lookup_ms, comm_ms, dense_ms = (float(value) for value in np.median(parts, axis=1))
    batch_size = reports[0].batch_size
    loss = [float(value) for value in np.mean([worker.loss for worker in workers], axis=0)]
    freshness = add_up([worker.rows_by_staleness for worker in workers], workers[0].schedule)
    return MethodRun(
        method=slowest.method,
        workers=len(reports),
        batch_size=batch_size,
        step_ms=step_ms,
        qps=1e3 * len(reports) * batch_size / step_ms.p50,
        lookup_ms=lookup_ms,
        comm_ms=comm_ms,
        dense_ms=dense_ms,
        other_ms=float(np.median(np.array(slowest.step_ms) - parts.sum(axis=0))),
        loss=loss,
        verdict=_judge(workers[0], checked),
        notes=_notes(workers[0], step_ms, loss, freshness),
        freshness=freshness,
    )


def _judge(report: MethodReport, checked: bool) -> Verdict:
    promise, difference = report.promise, report.difference
    if not checked or promise is None or difference is None:
        return Verdict(UNCHECKED)
    value, arbitration = difference.value, report.arbitration
    kept = math.isfinite(value) and (promise.tolerance is None or value <= promise.tolerance)
    confirmed = arbitration is not None and arbitration.confirms(value)
    arbiter = None
    if arbitration is not None:
        arbiter = Arbiter(arbitration.kind, finite(arbitration.difference.value))
    return Verdict(
        kind=promise.kind if kept or confirmed else FAILED,
        against=promise.against,
        max_difference=finite(value),
        tolerance=promise.tolerance,
        parameter=difference.parameter,
        arbiter=arbiter,
    )


def _notes(
    report: MethodReport, step_ms: Quantiles, loss: Sequence[float], freshness: Freshness | None
) -> tuple[str, ...]:
    notes = [report.note] if report.note else []
    if freshness is not None:
        notes.append(freshness.note)
    if report.arbitration is not None:
        notes.append(report.arbitration.note)
    if step_ms.p90 - step_ms.p10 > WIDE_SPREAD * step_ms.p50:
        notes.append(
            f"p10 to p90 spans more than {WIDE_SPREAD:.0%} of the median: "
            "measure longer, or on a quieter machine"
        )
    if not all(math.isfinite(value) for value in loss):
        notes.append("the loss is not finite")
    return tuple(notes)
