"""What ran when: one event an op, and the critical path of a step read off the events."""

from __future__ import annotations

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
    OpKind.AVERAGE: "comm",
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
    spans = _spans(events)
    busy: dict[int, dict[OpKind, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans.values():
        busy[span.op.step][span.op.kind] += 1e3 * (span.finished - span.started)
    updates = sorted((s for s in spans.values() if s.op.kind is OpKind.UPDATE), key=lambda s: s.op.step)
    steps = []
    for update in updates:
        before = spans.get(OpId(OpKind.UPDATE, update.op.step - 1))
        since = before.finished if before is not None else began
        if since is not None:
            exposed = _walk_back(update, since, spans)
            step_ms = 1e3 * (update.finished - since)
            steps.append(StepBreakdown(update.op.step, step_ms, exposed, dict(busy[update.op.step])))
    return steps


@dataclass(frozen=True, slots=True)
class _Span:
    """An op's own time, and the op before it on the same lane with the moment it made way."""

    op: Op
    issued: float
    started: float
    finished: float
    before: OpId | None
    before_made_way: float


def _spans(events: Iterable[OpEvent]) -> dict[OpId, _Span]:
    by_lane: dict[Lane, list[OpEvent]] = defaultdict(list)
    for event in events:
        by_lane[event.op.lane].append(event)
    spans: dict[OpId, _Span] = {}
    for lane_events in by_lane.values():
        lane_events.sort(key=lambda e: e.started)
        before: OpEvent | None = None
        for event in lane_events:
            made_way = float("-inf")
            if before is not None:
                # A transfer issued behind another is in its queue until that one is done.
                queued = before.finished <= event.finished
                made_way = before.finished if queued else before.returned
            spans[event.op.id] = _Span(
                event.op,
                event.issued,
                max(event.started, made_way),
                event.finished,
                None if before is None else before.op.id,
                made_way,
            )
            before = event
    return spans


def _walk_back(last: _Span, until: float, spans: dict[OpId, _Span]) -> dict[OpKind, float]:
    exposed: dict[OpKind, float] = defaultdict(float)
    span, cursor = last, last.finished
    for _ in spans:  # no op twice: ops that take no time could otherwise name each other
        if cursor <= until:
            break
        exposed[span.op.kind] += 1e3 * max(0.0, cursor - max(span.started, until))
        blockers = [(spans[ref].finished, ref) for ref in span.op.after if ref in spans]
        if span.before is not None:
            blockers.append((span.before_made_way, span.before))
        blockers = [(time, ref) for time, ref in blockers if time <= span.started]
        if not blockers:
            break
        time, ref = max(blockers, key=lambda pair: pair[0])
        if span.issued > time:  # it waited for the caller to issue it
            break
        span, cursor = spans[ref], time
    return dict(exposed)
