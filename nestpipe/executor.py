"""The executor: runs the ops of a schedule, each as soon as what it waits for has finished."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from nestpipe.lanes import Lanes, Pending
from nestpipe.schedule import Op, OpId, OpKind
from nestpipe.streams import CpuStreams, Mark, Streams
from nestpipe.trace import OpEvent

Handler = Callable[[Op], Pending | None]
Observer = Callable[[OpEvent], None]

MAX_STEPS_BEHIND = 3
"""How far the caller's thread may run ahead of an accelerator: so many batches live in its memory."""


@dataclass(slots=True)
class _Run:
    """How far an op is. On an accelerator `finished` says that all its work is queued, up to `mark`."""

    finished: threading.Event = field(default_factory=threading.Event)
    mark: Mark | None = None
    pending: Pending | None = None
    """Alive until the mark has passed: its tensors belong to the streams that made them, not to those
    that still read them."""

    def is_over(self) -> bool:
        return self.finished.is_set() and (self.mark is None or self.mark.has_passed())


@dataclass(frozen=True, slots=True)
class _Timed:
    """An op on an accelerator whose times are known once `end` has passed."""

    op: Op
    issued: float
    begin: Mark
    end: Mark


class Executor:
    """Issues ops to lanes and tracks which have finished.

    A handler does an op's work on the op's lane. If it returns a Pending, the op finishes when that
    does, while the lane goes on. The compute lane runs inside `run_until` and `drain`. The first exception
    stops everything: later ops are skipped and
    `run_until` raises it, with a note that says which op failed.

    On an accelerator, `streams`, an op has finished for the host when its work is queued; the streams of ops
    that wait for it wait for its mark. Nothing here then waits for the device but a `drain` and a caller
    too far ahead. Observers are told once the work is done, at the latest by a drain.
    """

    def __init__(self, handlers: Mapping[OpKind, Handler], rank: int, streams: Streams | None = None) -> None:
        self._handlers = handlers
        self._rank = rank
        self._streams = CpuStreams() if streams is None else streams
        self._is_settled = True
        """Nothing is in flight, and the caller may have changed what lanes work on."""
        self.observers: list[Observer] = []
        """Told of every op that finishes, on its lane's thread or, on an accelerator, on the caller's;
        without any, no clock is read."""
        self._lanes = Lanes(f"nestpipe-{rank}")
        self._runs: dict[OpId, _Run] = {}
        self._timed: deque[_Timed] = deque()
        self._failure: BaseException | None = None
        self._failure_lock = threading.Lock()

    @property
    def failure(self) -> BaseException | None:
        """The first exception that an op raised."""
        return self._failure

    def issue(self, ops: Iterable[Op]) -> None:
        """Hand ops to their lanes; each may depend only on ops issued before or along with it."""
        if self._is_settled:
            self._streams.follow_caller()
            self._is_settled = False
        ops = tuple(ops)
        for op in ops:
            self._runs[op.id] = _Run()
        for op in ops:
            waits = [self._runs[ref] for ref in op.after if ref in self._runs]
            self._lanes.submit(op.lane, self._task(op, waits, self._runs[op.id]))

    def run_until(self, op_id: OpId) -> None:
        """Run the compute lane on this thread until `op_id` has finished; raise if any op has failed."""
        if op_id in self._runs:  # a drain forgets what has finished
            run = self._runs[op_id]
            self._lanes.run_compute(until=run.finished)
            run.finished.wait()
        self._raise_failure()

    def wait_for_device(self, op_id: OpId) -> None:
        """Block until the work of `op_id`, which the host has finished, is done; tell the observers."""
        run = self._runs.get(op_id)
        if run is not None and run.mark is not None:
            run.mark.wait()
            self._report()

    def drain(self) -> None:
        """Block until every issued op has finished, on the device too; raise if any op has failed."""
        self._lanes.run_compute()
        for run in list(self._runs.values()):
            run.finished.wait()
            if run.mark is not None:
                run.mark.wait()
        self._report()
        self._runs.clear()
        self._is_settled = True
        self._raise_failure()

    def forget(self, before_step: int) -> int:
        """Drop the record of finished ops of steps before `before_step`, which nothing names any more.

        The first step that an op in flight belongs to, at most `before_step`: what earlier steps have used
        is free. Waits for an accelerator that is more than MAX_STEPS_BEHIND steps behind.
        """
        first = before_step
        for op_id in [op_id for op_id in self._runs if op_id.step < before_step]:
            run = self._runs[op_id]
            if run.mark is not None and op_id.step < before_step - MAX_STEPS_BEHIND:
                run.finished.wait()
                run.mark.wait()
            if run.is_over():
                del self._runs[op_id]
            else:
                first = min(first, op_id.step)
        self._report()
        return first

    def close(self, timeout_s: float = 10.0) -> list[str]:
        """Join the lanes; the names of those that did not end within `timeout_s`."""
        return self._lanes.close(timeout_s)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, op: Op, error: BaseException) -> None:
        with self._failure_lock:
            if self._failure is None:
                error.add_note(f"raised in {op.id} on rank {self._rank} (lane {op.lane.value})")
                self._failure = error
        # Nobody may wait for an op that will never run, or for a peer that waits for this rank.
        for run in list(self._runs.values()):
            run.finished.set()

    def _task(self, op: Op, waits: list[_Run], own: _Run) -> Callable[[], None]:
        observers = tuple(self.observers)
        streams = self._streams
        issued = perf_counter() if observers else 0.0

        def run() -> None:
            for earlier in waits:
                earlier.finished.wait()
            pending = begin = None
            with streams.section(op.lane, [earlier.mark for earlier in waits]):
                started = perf_counter() if observers else 0.0
                if self._failure is None:
                    try:
                        begin = streams.mark(timed=True) if observers else None
                        pending = self._handlers[op.kind](op)
                    except BaseException as error:
                        self._fail(op, error)
                returned = perf_counter() if observers else 0.0
                queued = streams.mark(timed=bool(observers))

            def finish() -> None:
                own.mark = queued
                if pending is not None:
                    own.pending = pending if queued is not None else None
                    try:
                        with streams.section("transfers", (queued,)):
                            pending.wait()
                            own.mark = streams.mark(timed=bool(observers))
                    except BaseException as error:
                        self._fail(op, error)
                if begin is not None and own.mark is not None:
                    self._timed.append(_Timed(op, issued, begin, own.mark))
                elif observers:
                    now = returned if pending is None else perf_counter()
                    event = OpEvent(op, issued, started, returned, now)
                    for observer in observers:
                        observer(event)
                own.finished.set()

            if pending is None:
                finish()
            else:
                self._lanes.submit_transfer(finish)

        return run

    def _report(self) -> None:
        """Tell the observers of the timed ops whose end has passed."""
        for _ in range(len(self._timed)):
            timed = self._timed.popleft()
            if not timed.end.has_passed():
                self._timed.append(timed)
                continue
            begin, end = self._streams.seconds(timed.begin), self._streams.seconds(timed.end)
            event = OpEvent(timed.op, timed.issued, begin, end, end)
            for observer in self.observers:
                observer(event)
