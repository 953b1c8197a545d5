"""A cost model from the trace of a measured run: medians over its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from harness.op_trace import TracedOp, own_ms, read_trace
from harness.simulation.costs import CostModel, OpCost
from nestpipe.schedule import PER_MICRO_BATCH, OpKind

Totals = Mapping[tuple[OpKind, int, int], float]
"""Milliseconds a step by kind, workers and micro-batches."""


def model_of_trace(path: Path) -> CostModel:
    """The costs in a trace file, at the numbers of workers that it holds.

    Of an op that ran with several window sizes, a line through them gives the cost of a batch and that of
    a micro-batch; of one that ran with a single size all counts as cost of the batch. Transfers contain
    the wait for the last worker to join, so of their workers the fastest counts; of others the slowest.
    """
    ops = read_trace(path)
    sizes = {op.batch_size for op in ops}
    if len(sizes) > 1:
        raise ValueError(f"the trace mixes batch sizes {sorted(sizes)}; write a file for each")
    totals = _totals(ops)
    kinds = dict.fromkeys(kind for kind, _, _ in totals)
    costs = {kind: _cost(kind, totals) for kind in kinds}
    return CostModel(name=path.stem, ops=costs, batch_size=sizes.pop())


def _totals(ops: Sequence[TracedOp]) -> Totals:
    by_step: dict[tuple[str, OpKind, int, int, int], dict[int, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for op, ms in own_ms(ops):
        key = op.method, OpKind(op.kind), op.workers, op.num_micro_batches, op.rank
        by_step[key][op.step] += ms
    by_rank: dict[tuple[str, OpKind, int, int], list[float]] = defaultdict(list)
    for (method, kind, workers, num, _), steps in by_step.items():
        by_rank[method, kind, workers, num].append(median(steps.values()))
    by_size: dict[tuple[OpKind, int, int], list[float]] = defaultdict(list)
    for (_, kind, workers, num), ranks in by_rank.items():
        is_collective = kind in (OpKind.EXCHANGE, OpKind.REDUCE, OpKind.ALLREDUCE, OpKind.ROUTE)
        by_size[kind, workers, num].append(min(ranks) if is_collective else max(ranks))
    return {key: median(methods) for key, methods in by_size.items()}


def _cost(kind: OpKind, totals: Totals) -> OpCost:
    by_workers: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (other, workers, num), ms in totals.items():
        if other is kind:
            by_workers[workers].append((num, ms))
    is_split = kind in PER_MICRO_BATCH
    fixed_ms = fmean(map(_slope, by_workers.values())) if is_split else 0.0
    points = (
        (float(workers), max(0.0, fmean(ms - fixed_ms * num for num, ms in own)))
        for workers, own in sorted(by_workers.items())
    )
    return OpCost(tuple(points), fixed_ms)


def _slope(points: Iterable[tuple[int, float]]) -> float:
    """Of the least-squares line through (micro-batches, ms), not below 0; 0 for a single size."""
    points = list(points)
    centre = fmean(num for num, _ in points)
    spread = sum((num - centre) ** 2 for num, _ in points)
    if not spread:
        return 0.0
    level = fmean(ms for _, ms in points)
    return max(0.0, sum((num - centre) * (ms - level) for num, ms in points) / spread)
