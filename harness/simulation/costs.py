"""What ops take: a function of workers, batch, micro-batches, group size and key statistics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.simulation.engine import OpTime
from harness.simulation.keys import KeyStatistics
from nestpipe.schedule import Lane, Op, OpKind, Schedule

IN_GROUPS = frozenset({OpKind.ROUTE, OpKind.EXCHANGE, OpKind.REDUCE})
"""What travels among the workers that share the tables."""
BY_ROWS = frozenset({OpKind.RETRIEVE, OpKind.WRITE_BACK, OpKind.SYNC})
"""What a batch's unique rows decide."""


@dataclass(frozen=True)
class OpCost:
    """What the ops of one kind take."""

    batch_ms: tuple[tuple[float, float], ...]
    """A whole batch: (workers, ms) by ascending workers, straight lines between and beyond."""
    fixed_ms: float = 0.0
    """On top, of every op: of each micro-batch, where there are several."""
    latency_us_per_peer: float = 0.0
    """Of a transfer, once a peer; occupies nothing."""

    def __post_init__(self) -> None:
        workers = [point[0] for point in self.batch_ms]
        if not workers or sorted(set(workers)) != workers or workers[0] <= 0:
            raise ValueError(f"batch_ms needs points at ascending numbers of workers, got {self.batch_ms}")
        if min(self.fixed_ms, self.latency_us_per_peer, *(ms for _, ms in self.batch_ms)) < 0:
            raise ValueError("batch_ms, fixed_ms and latency_us_per_peer must be at least 0")

    def of_batch(self, num_workers: float) -> float:
        """Milliseconds of a whole batch, `fixed_ms` not counted."""
        points = self.batch_ms
        if len(points) == 1:
            return points[0][1]
        index = min(max(bisect_left(points, (num_workers,)), 1), len(points) - 1)
        (low, low_ms), (high, high_ms) = points[index - 1 : index + 1]
        return max(0.0, low_ms + (high_ms - low_ms) * (num_workers - low) / (high - low))


def constant(batch_ms: float, fixed_ms: float = 0.0) -> OpCost:
    """The same at any number of workers."""
    return OpCost(((1.0, batch_ms),), fixed_ms)


@dataclass(frozen=True)
class Conditions:
    """What a step is simulated under."""

    num_workers: int
    relative_batch: float = 1.0
    """Samples a worker over those that the cost model speaks of."""
    group_share: float = 1.0
    """Share of the workers that share the tables: below 1 in 2D sparse parallelism."""
    duplication: float = 1.0
    """Rows sent over unique ones: above 1 for a method that does not deduplicate."""
    key_overlap: float | None = None
    """Share of its unique rows that a batch has in common with the one before; None: the model's own."""
    keys: KeyStatistics | None = None
    """How keys repeat; without, cutting a batch into micro-batches sends no row twice."""


@dataclass(frozen=True)
class CostModel:
    """What every op takes; a user's own is a file of the same fields."""

    name: str
    ops: Mapping[OpKind, OpCost]
    batch_size: int = 512
    """Samples a worker that `batch_ms` is of."""
    residual_lookup_ms: float = 0.0
    """Passes between the update of a step and the issue of the next one's ops, where batches overlap: what
    stays exposed of a lookup that is otherwise hidden."""
    key_overlap: float = 1.0
    """Share of common rows that `sync` is given for."""

    def times(self, schedule: Schedule, conditions: Conditions) -> list[OpTime]:
        """What each op of the steady state takes; ValueError that names an op of unknown cost."""
        return [self._time(op, schedule, conditions) for op in schedule.steady]

    def handover_ms(self, schedule: Schedule, conditions: Conditions) -> float:
        """What passes between an update and the next step's ops.

        A residual covers the `sync` of the model's own key overlap, so that of another overlap changes it.
        """
        residual_ms = self.residual_lookup_ms if schedule.look_ahead else 0.0
        has_sync = any(op.kind is OpKind.SYNC for op in schedule.steady)
        if not residual_ms or not has_sync or conditions.key_overlap is None:
            return residual_ms
        sync_ms = self._cost(OpKind.SYNC).of_batch(conditions.num_workers)
        return max(0.0, residual_ms + sync_ms * (conditions.key_overlap / self.key_overlap - 1.0))

    def dense_ms(self, conditions: Conditions) -> float:
        """Compute of a whole batch in one piece: what utilisation counts as useful."""
        cost = self._cost(OpKind.COMPUTE)
        return cost.of_batch(conditions.num_workers) * conditions.relative_batch + cost.fixed_ms

    def scaled(self, factors: Mapping[OpKind, float]) -> CostModel:
        """The model with whole batches of some kinds costing that many times as much."""
        ops = dict(self.ops)
        for kind, factor in factors.items():
            points = tuple((workers, ms * factor) for workers, ms in self._cost(kind).batch_ms)
            ops[kind] = replace(ops[kind], batch_ms=points)
        return replace(self, ops=ops)

    def _cost(self, kind: OpKind) -> OpCost:
        if kind not in self.ops:
            known = ", ".join(sorted(known.value for known in self.ops))
            raise ValueError(
                f"cost model {self.name!r} has no op {str(kind)!r}, only {known}; add it, with 0 if it takes "
                "no time"
            )
        return self.ops[kind]

    def _time(self, op: Op, schedule: Schedule, conditions: Conditions) -> OpTime:
        cost = self._cost(op.kind)
        num_workers = conditions.num_workers * (conditions.group_share if op.kind in IN_GROUPS else 1.0)
        ms = (
            cost.of_batch(num_workers)
            * conditions.relative_batch
            * self._key_factor(op, schedule, conditions)
        )
        ms = cost.fixed_ms + ms * _share(op, schedule.cuts)
        if op.lane is Lane.COMM:
            return OpTime(link_ms=ms, latency_ms=cost.latency_us_per_peer * num_workers / 1e3)
        return OpTime(lane_ms=ms)

    def _key_factor(self, op: Op, schedule: Schedule, conditions: Conditions) -> float:
        """How much more than a whole batch's unique rows an op moves."""
        keys = conditions.keys
        factor = 1.0 if keys is None else keys.relative_rows
        if op.kind is OpKind.SYNC and conditions.key_overlap is not None:
            return factor * conditions.key_overlap / self.key_overlap
        if op.kind in BY_ROWS:
            return factor
        if op.kind in (OpKind.EXCHANGE, OpKind.REDUCE):
            return factor * conditions.duplication * (1.0 if keys is None else keys.inflation(schedule.cuts))
        return 1.0


def _share(op: Op, cuts: Sequence[int]) -> float:
    """Of the batch's samples, those that the op works on."""
    m = op.id.micro_batch
    return 1.0 if m is None else cuts[m] / sum(cuts)
