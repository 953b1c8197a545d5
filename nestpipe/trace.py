"""What ran when: one event an op, and the critical path of a step read off the events."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from nestpipe.schedule import Lane, Op, OpId, OpKind

GROUP_OF: dict[OpKind, str] = {
    OpKind.PREFETCH: "lookup",
    OpKind.H2D: "lookup",
    OpKind.ROUTE: "lookup",
    OpKind.RETRIEVE: "lookup",
    OpKind.SYNC: "lookup",
    OpKind.WRITE_BACK: "lookup",
    OpKind.EXCHANGE: "comm",
    OpKind.REDUCE: "comm",
    OpKind.COMPUTE: "dense",
    OpKind.ALLREDUCE: "dense",
    OpKind.UPDATE: "dense",
}


@dataclass(frozen=True, slots=True)
class OpEvent:
    """One op's life in seconds of `time.perf_counter`: handed to its lane, started, returned by the
    lane (a transfer may still be under way), finished."""

    op: Op
    issued: float
    started: float
    returned: float
    finished: float


class Tracer:
    """Collects the events of a run, in the order in which ops finish."""

    def __init__(self) -> None:
        self._events: list[OpEvent] = []

    def record(self, event: OpEvent) -> None:
        self._events.append(event)  # atomic, and so safe from every lane

    def take(self) -> list[OpEvent]:
        """Remove and return all events so far."""
        taken, self._events = self._events, []
        return taken


@dataclass(frozen=True)
class StepBreakdown:
    """One step from the previous update's end to its own: exposed and busy milliseconds by op kind."""

    step: int
    step_ms: float
    exposed_ms: dict[OpKind, float]
    busy_ms: dict[OpKind, float]

    def exposed_group_ms(self, group: str) -> float:
        """Exposed time of "lookup", "comm" or "dense"."""
        return sum(ms for kind, ms in self.exposed_ms.items() if GROUP_OF[kind] == group)

    @property
    def other_ms(self) -> float:
        """What no op explains: hand-offs between lanes and the caller's own time."""
        return self.step_ms - sum(self.exposed_ms.values())


def breakdown(events: Iterable[OpEvent], began: float | None = None) -> list[StepBreakdown]:
    """Exposed times of each step whose update is among `events`, counted from the update before it.

    The first step counts from `began` (seconds of `perf_counter`); without, it is left out. Walks back
    from an update to the previous one along what each op waited for last, so the exposed times and
    `other_ms` sum to the step.
    """
    by_id = {event.op.id: event for event in events}
    before_on_lane = _lane_predecessors(by_id.values())
    busy: dict[int, dict[OpKind, float]] = defaultdict(lambda: defaultdict(float))
    for event in by_id.values():
        busy[event.op.step][event.op.kind] += 1e3 * (event.finished - event.started)
    updates = sorted((e for e in by_id.values() if e.op.kind is OpKind.UPDATE), key=lambda e: e.op.step)
    steps = []
    for update in updates:
        before = by_id.get(OpId(OpKind.UPDATE, update.op.step - 1))
        since = before.finished if before is not None else began
        if since is not None:
            exposed = _walk_back(update, since, by_id, before_on_lane)
            step_ms = 1e3 * (update.finished - since)
            steps.append(StepBreakdown(update.op.step, step_ms, exposed, dict(busy[update.op.step])))
    return steps


def _lane_predecessors(events: Iterable[OpEvent]) -> dict[OpId, OpEvent]:
    by_lane: dict[Lane, list[OpEvent]] = defaultdict(list)
    for event in events:
        by_lane[event.op.lane].append(event)
    predecessors = {}
    for lane_events in by_lane.values():
        lane_events.sort(key=lambda e: e.started)
        for before, after in itertools.pairwise(lane_events):
            predecessors[after.op.id] = before
    return predecessors


def _walk_back(
    last: OpEvent, until: float, by_id: dict[OpId, OpEvent], before_on_lane: dict[OpId, OpEvent]
) -> dict[OpKind, float]:
    exposed: dict[OpKind, float] = defaultdict(float)
    event, cursor = last, last.finished
    while cursor > until:
        exposed[event.op.kind] += 1e3 * max(0.0, cursor - max(event.started, until))
        blockers = [(by_id[ref].finished, by_id[ref]) for ref in event.op.after if ref in by_id]
        if event.op.id in before_on_lane:
            lane_event = before_on_lane[event.op.id]
            blockers.append((lane_event.returned, lane_event))
        started = event.started
        blockers = [(time, blocker) for time, blocker in blockers if time <= started]
        if not blockers:
            break
        time, blocker = max(blockers, key=lambda pair: pair[0])
        if event.issued > time:  # it waited for the caller to issue it
            break
        event, cursor = blocker, time
    return dict(exposed)
