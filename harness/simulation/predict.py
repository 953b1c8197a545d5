"""What a method's step takes under a cost model: the steady state, exposed times included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from harness.simulation.costs import Conditions, CostModel
from harness.simulation.engine import OpTime, Timeline, simulate
from harness.simulation.methods import SimulatedMethod
from harness.simulation.plan import plan_of
from nestpipe.schedule import OpKind, Schedule
from nestpipe.trace import OpEvent, breakdown

NUM_MEASURED_STEPS = 12
GROUP_SHARE = 0.25
"""Of the cluster, a sharding group of the 2D methods (declared, as in the emulated cluster's profiles)."""


@dataclass(frozen=True)
class Prediction:
    """A simulated step in milliseconds: means over steps of the steady state."""

    method: str
    num_workers: int
    step_ms: float
    lookup_ms: float
    """Exposed, as are the next two; the three sum to the step."""
    comm_ms: float
    dense_ms: float
    total_comm_ms: float
    """The link's time with rows and their gradients and a latency each way, exposed or not."""
    modelled_dense_ms: float
    """Compute of a whole batch."""
    samples_ms: tuple[float, ...]
    """The steps that the means are over."""
    cuts: tuple[int, ...]

    @property
    def utilisation(self) -> float:
        """Useful compute / step."""
        return self.modelled_dense_ms / self.step_ms


def predict(
    method: SimulatedMethod,
    model: CostModel,
    conditions: Conditions,
    num_steps: int = NUM_MEASURED_STEPS,
    group_share: float = GROUP_SHARE,
) -> Prediction:
    """Simulate until the pipeline has filled, and `num_steps` steps more."""
    conditions = conditions_of(method, conditions, group_share)
    method = method.settled(model, conditions)
    schedule = method.schedule
    times = model.times(schedule, conditions)
    timeline = steady_timeline(schedule, times, num_steps, model.handover_ms(schedule, conditions))
    return measure(
        method.name,
        conditions,
        timeline,
        num_steps,
        total_comm_ms=_total_comm_ms(schedule, times),
        modelled_dense_ms=model.dense_ms(conditions),
        cuts=schedule.cuts,
    )


def conditions_of(
    method: SimulatedMethod, conditions: Conditions, group_share: float = GROUP_SHARE
) -> Conditions:
    """The conditions as they are for a method: its groups, and whether it sends duplicates.

    Where nothing is known of keys, no row counts as sent twice.
    """
    if method.is_grouped:
        conditions = replace(conditions, group_share=group_share)
    keys = conditions.keys
    if not method.deduplicates and keys is not None:
        duplication = keys.tokens_per_batch / keys.unique(keys.tokens_per_batch)
        conditions = replace(conditions, duplication=duplication)
    return conditions


def steady_timeline(
    schedule: Schedule, times: list[OpTime], num_steps: int, handover_ms: float = 0.0
) -> Timeline:
    """A run whose last `num_steps` steps are of the steady state."""
    num_filling = 2 * schedule.look_ahead + 4
    return simulate(plan_of(schedule), times, num_filling + num_steps, handover_ms)


def steady_events(
    method: SimulatedMethod, model: CostModel, conditions: Conditions, num_steps: int
) -> tuple[list[OpEvent], int]:
    """The ops of a run that ends with `num_steps` steps of the steady state, and its last whole step."""
    conditions = conditions_of(method, conditions)
    schedule = method.settled(model, conditions).schedule
    times = model.times(schedule, conditions)
    timeline = steady_timeline(schedule, times, num_steps, model.handover_ms(schedule, conditions))
    # The steps behind the last one would lack what later batches add to them.
    return timeline.events(), len(timeline.step_ms()) - 1


def measure(
    method: str,
    conditions: Conditions,
    timeline: Timeline,
    num_steps: int,
    *,
    total_comm_ms: float,
    modelled_dense_ms: float,
    cuts: tuple[int, ...],
) -> Prediction:
    """Read the last `num_steps` steps of a timeline."""
    samples = timeline.step_ms()
    # What a step's critical path passes through was issued after the step before began to be looked up.
    first = len(samples) - num_steps - timeline.plan.look_ahead - 1
    steps = breakdown(timeline.events(first))[-num_steps:]
    comm_ms = fmean(step.exposed_group_ms("comm") for step in steps)
    dense_ms = fmean(step.exposed_group_ms("dense") for step in steps)
    step_ms = fmean(samples[-num_steps:])
    return Prediction(
        method=method,
        num_workers=conditions.num_workers,
        step_ms=step_ms,
        # No op explains the residual between two steps: it is lookup by declaration.
        lookup_ms=step_ms - comm_ms - dense_ms,
        comm_ms=comm_ms,
        dense_ms=dense_ms,
        total_comm_ms=total_comm_ms,
        modelled_dense_ms=modelled_dense_ms,
        samples_ms=tuple(samples[-num_steps:]),
        cuts=cuts,
    )


def _total_comm_ms(schedule: Schedule, times: list[OpTime]) -> float:
    by_kind: dict[OpKind, list[OpTime]] = {OpKind.EXCHANGE: [], OpKind.REDUCE: []}
    for op, time in zip(schedule.steady, times, strict=True):
        if op.kind in by_kind:
            by_kind[op.kind].append(time)
    # Within a direction transfers follow each other, and one latency is left at the end.
    return sum(
        sum(time.link_ms for time in own) + max((time.latency_ms for time in own), default=0.0)
        for own in by_kind.values()
    )
