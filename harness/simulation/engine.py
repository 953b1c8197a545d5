"""Discrete events: when each op of a schedule starts and finishes, given what ops take.

The rules are the executor's. A lane runs its ops in issue order, each once what it waits for has
finished. The ops of a step are issued when the update of the step before has finished, those that fill
the pipeline along with the first step. Transfers share one link, first come, first served: each occupies
it for its time on the link, and its latency passes after that and occupies nothing. On the comm lane a
transfer finishes elsewhere, in issue order; on any other lane the op holds its lane until it is through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from harness.simulation.plan import Plan
from nestpipe.schedule import Lane
from nestpipe.trace import OpEvent


@dataclass(frozen=True)
class OpTime:
    """What one op takes, in milliseconds."""

    lane_ms: float = 0.0
    """On its lane, before a transfer begins."""
    link_ms: float = 0.0
    """Of the link's time."""
    latency_ms: float = 0.0
    """After the link; occupies nothing."""
    finish_ms: float = 0.0
    """Where transfers finish, one after the other."""

    @property
    def is_transfer(self) -> bool:
        return self.link_ms > 0 or self.latency_ms > 0 or self.finish_ms > 0

    @property
    def total_ms(self) -> float:
        """With nothing in its way."""
        return self.lane_ms + self.link_ms + self.latency_ms + self.finish_ms


@dataclass
class Timeline:
    """When the ops of a simulated run ran, in milliseconds from its start.

    The lists are by op of the plan and step at which it was issued, the earliest first; None for ops of
    batches before the first.
    """

    plan: Plan
    first_issue: int
    """Step at which the first ops are issued: minus the look-ahead."""
    issued: list[float]
    started: list[list[float | None]]
    returned: list[list[float | None]]
    finished: list[list[float | None]]

    def step_ms(self) -> list[float]:
        """Each step's time, from the update before it, or the start, to its own."""
        ends = [0.0, *(end for end in self.finished[self.plan.update] if end is not None)]
        return [end - begin for begin, end in pairwise(ends)]

    def events(self, from_issue: int = 0) -> list[OpEvent]:
        """The ops issued at step `from_issue` or later as the executor's trace would have them: in the
        order in which they finish, and those that take no time in the order in which they ran."""
        events = []
        for position in range(max(0, from_issue - self.first_issue), len(self.issued)):
            issued = self.issued[position]
            for index, op in enumerate(self.plan.ops):
                started, returned = self.started[index][position], self.returned[index][position]
                finished = self.finished[index][position]
                if started is None or returned is None or finished is None:
                    continue
                shifted = op.shifted(self.first_issue + position)
                events.append(OpEvent(shifted, issued / 1e3, started / 1e3, returned / 1e3, finished / 1e3))
        return sorted(events, key=lambda event: event.finished)


def simulate(plan: Plan, times: Sequence[OpTime], num_steps: int, handover_ms: float = 0.0) -> Timeline:
    """Run `num_steps` steps of `plan`, whose ops take `times`, in time linear in their number.

    `handover_ms` passes between the update of a step and the issue of the next one's ops.
    """
    return _Simulation(plan, times, num_steps, handover_ms).run()


class _Simulation:
    """Each event is either an op that starts on its lane or a transfer that reaches the link."""

    def __init__(self, plan: Plan, times: Sequence[OpTime], num_steps: int, handover_ms: float) -> None:
        assert len(times) == len(plan.ops)
        assert num_steps >= 1
        self._plan, self._times, self._handover_ms = plan, times, handover_ms
        self._num_issues = plan.look_ahead + num_steps
        # A batch enters with its first op; what a step issues for batches before the first is left out.
        self._first = [max(0, plan.look_ahead - op.step) for op in plan.ops]
        self._is_async = [op.lane is Lane.COMM for op in plan.ops]
        shape = range(len(plan.ops))
        self._started: list[list[float | None]] = [[None] * self._num_issues for _ in shape]
        self._returned: list[list[float | None]] = [[None] * self._num_issues for _ in shape]
        self._finished: list[list[float | None]] = [[None] * self._num_issues for _ in shape]
        self._issued: list[float | None] = [None] * self._num_issues
        for position in range(plan.look_ahead + 1):
            self._issued[position] = 0.0
        self._heads = [(0, 0) for _ in plan.lanes]
        """Of each lane, the issue position and place in the lane's order of its next op."""
        self._lane_free = [0.0] * len(plan.lanes)
        self._waiting: dict[tuple[int, int], list[int]] = {}
        """Lanes whose next op waits for an op, by that op and its issue position."""
        self._link_free = self._transfers_free = 0.0
        self._events: list[tuple[float, int, int, int, int]] = []
        self._num_events = 0

    def run(self) -> Timeline:
        for lane in range(len(self._plan.lanes)):
            self._offer(lane)
        events = self._events
        while events:
            time, _, lane, index, position = heappop(events)
            if self._started[index][position] is None:
                self._start(time, lane, index, position)
            else:
                self._transfer(time, lane, index, position)
        issued = [time for time in self._issued if time is not None]
        assert len(issued) == self._num_issues, "a lane waits for what never runs"
        return Timeline(
            self._plan, -self._plan.look_ahead, issued, self._started, self._returned, self._finished
        )

    def _push(self, time: float, lane: int, index: int, position: int) -> None:
        self._num_events += 1  # equals go in the order in which they came
        heappush(self._events, (time, self._num_events, lane, index, position))

    def _offer(self, lane: int) -> None:
        """Let the lane's next op start when it can; if that is not known yet, ask again later."""
        position, place = self._heads[lane]
        order = self._plan.lanes[lane]
        while position < self._num_issues:
            index = order[place]
            if position >= self._first[index]:
                break
            position, place = (position, place + 1) if place + 1 < len(order) else (position + 1, 0)
        self._heads[lane] = position, place
        if position >= self._num_issues:
            return
        start = self._issued[position]
        if start is None:
            self._waiting.setdefault((self._plan.update, position - 1), []).append(lane)
            return
        start = max(start, self._lane_free[lane])
        for other, steps_before in self._plan.after[index]:
            earlier = position - steps_before
            if earlier < self._first[other]:
                continue  # of a batch before the first
            end = self._finished[other][earlier]
            if end is None:
                self._waiting.setdefault((other, earlier), []).append(lane)
                return
            start = max(start, end)
        self._push(start, lane, index, position)

    def _start(self, time: float, lane: int, index: int, position: int) -> None:
        op_time = self._times[index]
        returned = time + op_time.lane_ms
        self._started[index][position] = time
        self._returned[index][position] = returned
        if op_time.is_transfer:
            self._push(returned, lane, index, position)
            if self._is_async[index]:
                self._advance(lane, returned)
        else:
            self._finish(returned, index, position)
            self._advance(lane, returned)

    def _transfer(self, time: float, lane: int, index: int, position: int) -> None:
        op_time = self._times[index]
        if op_time.link_ms > 0:
            self._link_free = max(self._link_free, time) + op_time.link_ms
            time = self._link_free
        end = time + op_time.latency_ms
        if self._is_async[index]:
            self._transfers_free = end = max(end, self._transfers_free) + op_time.finish_ms
            self._finish(end, index, position)
        else:
            end += op_time.finish_ms
            self._returned[index][position] = end
            self._finish(end, index, position)
            self._advance(lane, end)

    def _advance(self, lane: int, free: float) -> None:
        position, place = self._heads[lane]
        last = place + 1 == len(self._plan.lanes[lane])
        self._heads[lane] = (position + 1, 0) if last else (position, place + 1)
        self._lane_free[lane] = free
        self._offer(lane)

    def _finish(self, time: float, index: int, position: int) -> None:
        self._finished[index][position] = time
        if index == self._plan.update and position + 1 < self._num_issues:
            self._issued[position + 1] = time + self._handover_ms
        for lane in self._waiting.pop((index, position), ()):
            self._offer(lane)
