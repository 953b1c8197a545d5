"""The simulator against the emulated cluster: one predicts what the other measures, from other runs.

Real costs come from a run with nothing modelled, modelled costs from the profile; no emulated step is
seen. The emulated cluster lets real work count inside a modelled time in some places and adds it in
others, and so does this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median

from harness.emulation.profiles import Profile
from harness.op_trace import own_ms, traced
from harness.simulation.costs import Conditions
from harness.simulation.engine import OpTime
from harness.simulation.paper import model_of
from harness.simulation.predict import steady_timeline
from nestpipe.schedule import Lane, Op, OpKind, Schedule
from nestpipe.trace import OpEvent

NUM_STEPS = 12
# The real access to rows or to the batch, which is nearly all of these ops, is part of the modelled time.
_INSIDE = frozenset({OpKind.H2D, OpKind.WRITE_BACK})
_TRANSFERS = frozenset({OpKind.EXCHANGE, OpKind.REDUCE, OpKind.ALLREDUCE})
Key = tuple[OpKind, int | None]
"""An op of the steady state: kind and micro-batch."""


@dataclass(frozen=True)
class RealCosts:
    """What a method's ops take on this machine with nothing modelled, and what they move.

    Of a transfer, `lane_ms` is what issuing it takes and `finish_ms` what its real collective does.
    """

    times: Mapping[Key, OpTime] = field(default_factory=dict)
    caller_ms: float = 0.0
    """From the end of an update to the issue of the next step's ops."""
    relative_bytes: float = 1.0
    """Row bytes on the link in a step over those of TorchRec's base pipeline, which the profile is for."""
    relative_reads: float = 1.0
    """Unique rows read, likewise."""
    relative_writes: float = 1.0
    relative_key_bytes: float = 0.0
    """Bytes of a key over those of its row: what routing sends."""
    num_key_messages: int = 2
    """Collectives in a row that routing waits for."""


def real_costs(workers: Sequence[Sequence[OpEvent]]) -> RealCosts:
    """Costs in the events of every worker: medians over steps, then the mean of the workers.

    An op counts from the moment when nothing but its lane's thread holds it up. Workers' means, since it is
    chance which of several processes on few cores has to wait; real collectives contain the wait for the
    last worker to join, so of those the fastest worker counts.
    """
    by_worker = [_medians(events) for events in workers]
    times = {}
    for key in by_worker[0]:
        own = [medians[key] for medians in by_worker if key in medians]
        lane, fastest = fmean(time.lane_ms for time in own), min(time.finish_ms for time in own)
        times[key] = OpTime(lane_ms=lane, finish_ms=fastest)
    return RealCosts(times, caller_ms=fmean(map(_caller_ms, workers)))


def real_costs_in_turn(lookup_ms: float, comm_ms: float, dense_ms: float) -> RealCosts:
    """Costs of a method without events that does everything in turn, from its exposed times."""
    times: dict[Key, OpTime] = {
        (OpKind.ROUTE, None): OpTime(lane_ms=lookup_ms),
        (OpKind.EXCHANGE, 0): OpTime(finish_ms=comm_ms / 2),
        (OpKind.COMPUTE, 0): OpTime(lane_ms=dense_ms),
        (OpKind.REDUCE, 0): OpTime(finish_ms=comm_ms / 2),
    }
    return RealCosts(times, num_key_messages=3)


def predict_emulated(
    profile: Profile, schedule: Schedule, real: RealCosts, *, is_grouped: bool = False
) -> float:
    """Milliseconds of the step that the emulated cluster should measure, a median without averaging steps."""
    share = profile.group_share if is_grouped else 1.0
    conditions = Conditions(profile.num_workers, group_share=share, duplication=real.relative_bytes)
    model = model_of(profile)
    # Nothing stands for the declared residual on the emulated cluster, and its sync is a real one.
    model = replace(model, residual_lookup_ms=0.0).scaled(
        {
            OpKind.RETRIEVE: real.relative_reads,
            OpKind.WRITE_BACK: real.relative_writes,
            OpKind.SYNC: 0.0,
        }
    )
    modelled = model.times(schedule, conditions)
    exchange = model.ops[OpKind.EXCHANGE]
    peers = profile.num_workers * share
    routing = OpTime(
        link_ms=exchange.of_batch(peers) * real.relative_bytes * real.relative_key_bytes,
        latency_ms=real.num_key_messages * exchange.latency_us_per_peer * peers / 1e3,
    )
    times = [
        _combined(op, routing if op.kind is OpKind.ROUTE else time, real.times)
        for op, time in zip(schedule.steady, modelled, strict=True)
    ]
    steps = steady_timeline(schedule, times, NUM_STEPS, real.caller_ms).step_ms()
    return median(steps[-NUM_STEPS:])


def _combined(op: Op, modelled: OpTime, real_times: Mapping[Key, OpTime]) -> OpTime:
    real = real_times.get((op.kind, op.id.micro_batch), OpTime())
    if op.kind in _TRANSFERS:
        # Through at the later of the two: when gloo is, and when the model says.
        left_ms = max(0.0, real.finish_ms - modelled.link_ms - modelled.latency_ms)
        return replace(modelled, lane_ms=real.lane_ms, finish_ms=left_ms)
    if op.kind in _INSIDE:
        return replace(modelled, lane_ms=max(modelled.lane_ms, real.lane_ms))
    return replace(modelled, lane_ms=modelled.lane_ms + real.lane_ms)


def _medians(events: Sequence[OpEvent]) -> dict[Key, OpTime]:
    ops = traced(events, method="", workers=1, rank=0, batch_size=1)
    lane: dict[Key, list[float]] = defaultdict(list)
    transfer: dict[Key, list[float]] = defaultdict(list)
    for op, ms in own_ms(list(ops)):
        key = OpKind(op.kind), op.micro_batch
        on_lane = op.returned_ms - op.started_ms
        lane[key].append(on_lane)
        transfer[key].append(max(0.0, ms - on_lane) if key[0] in _TRANSFERS else 0.0)
    handoff_ms = _handoffs(events)
    return {
        key: OpTime(lane_ms=median(lane[key]) + handoff_ms.get(key, 0.0), finish_ms=median(transfer[key]))
        for key in lane
    }


def _handoffs(events: Sequence[OpEvent]) -> dict[Key, float]:
    """Median milliseconds from when an op's lane and all that it waits for were done until it started."""
    finished = {event.op.id: event.finished for event in events}
    by_lane: dict[Lane, list[OpEvent]] = defaultdict(list)
    for event in events:
        by_lane[event.op.lane].append(event)
    found: dict[Key, list[float]] = defaultdict(list)
    for lane_events in by_lane.values():
        lane_events.sort(key=lambda event: event.started)
        for before, event in pairwise(lane_events):
            if all(ref in finished for ref in event.op.after):
                ready = max(before.returned, event.issued, *(finished[ref] for ref in event.op.after))
                found[event.op.kind, event.op.id.micro_batch].append(1e3 * (event.started - ready))
    return {key: max(0.0, median(waits)) for key, waits in found.items()}


def _caller_ms(events: Sequence[OpEvent]) -> float:
    updates = {event.op.step: event.finished for event in events if event.op.kind is OpKind.UPDATE}
    issues = {event.op.step: event.issued for event in events if event.op.kind is OpKind.UPDATE}
    gaps = [1e3 * (issues[step] - updates[step - 1]) for step in issues if step - 1 in updates]
    return max(0.0, median(gaps)) if gaps else 0.0
