"""The executor: runs the ops of a schedule, each as soon as what it waits for has finished."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from nestpipe.lanes import Lanes, Pending
from nestpipe.schedule import Op, OpId, OpKind
from nestpipe.streams import CpuStreams, Mark, Streams
from nestpipe.trace import OpEvent

logger = logging.getLogger("nestpipe")

Handler = Callable[[Op], Pending | None]
Observer = Callable[[OpEvent], None]

MAX_STEPS_BEHIND = 3
"""How far the caller's thread may run ahead of an accelerator: so many batches live in its memory."""


@dataclass(slots=True)
class _Run:
    """How far an op is. On an accelerator `finished` says that all its work is queued, up to `mark`."""

    op: Op
    observers: tuple[Observer, ...]
    issued: float = 0.0
    started: float = 0.0
    returned: float = 0.0
    finished: threading.Event = field(default_factory=threading.Event)
    begin: Mark | None = None
    """On an accelerator, where somebody observes."""
    mark: Mark | None = None
    pending: Pending | None = None
    """Alive until the mark has passed: its tensors belong to the streams that made them, not to those
    that still read them."""

    def is_over(self) -> bool:
        return self.finished.is_set() and (self.mark is None or self.mark.has_passed())

    def now(self) -> float:
        """The time, if anybody wants to know it."""
        return perf_counter() if self.observers else 0.0

    def tell(self, event: OpEvent) -> None:
        for observer in self.observers:
            observer(event)


class Executor:
    """Issues ops to lanes and tracks which have finished.

    A handler does an op's work on the op's lane. If it returns a Pending, the op finishes when that
    does, while the lane goes on. The compute lane runs inside `run_until` and `drain`. The first exception
    stops everything, wherever in an op it was raised, also by a stream or an observer: later ops are skipped
    and `run_until` raises it, with a note that says which op failed.

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
        self._timed: deque[_Run] = deque()
        """Ops on an accelerator whose times are known once their mark has passed."""
        self._failure: BaseException | None = None
        self._failure_lock = threading.Lock()

    def issue(self, ops: Iterable[Op]) -> None:
        """Hand ops to their lanes; each may depend only on ops issued before or along with it."""
        if self._is_settled:
            self._streams.follow_caller()
            self._is_settled = False
        ops = tuple(ops)
        observers = tuple(self.observers)
        for op in ops:
            self._runs[op.id] = _Run(op, observers)
        for op in ops:
            waits = [self._runs[ref] for ref in op.after if ref in self._runs]
            run = self._runs[op.id]
            run.issued = run.now()
            self._lanes.submit(op.lane, partial(self._work, run, waits))

    def run_until(self, op_id: OpId) -> None:
        """Run the compute lane on this thread until `op_id` has finished; raise if any op has failed."""
        if op_id in self._runs:  # a drain forgets what has finished
            run = self._runs[op_id]
            self._lanes.run_compute(until=run.finished)
            run.finished.wait()
        self._raise_failure()

    def wait_for_device(self, op_id: OpId) -> None:
        """Block until the work of `op_id`, which the host has finished, is done; tell the observers.

        Raises if any op has failed.
        """
        run = self._runs.get(op_id)
        if run is not None and run.mark is not None:
            self._wait_for_mark(run)
            self._report()
        self._raise_failure()

    def drain(self) -> None:
        """Block until every issued op has finished, on the device too; raise if any op has failed."""
        self._lanes.run_compute()
        for run in list(self._runs.values()):
            run.finished.wait()
            self._wait_for_mark(run)
        self._report()
        self._runs.clear()
        self._is_settled = True
        self._raise_failure()

    def forget(self, before_step: int) -> int:
        """Drop the record of finished ops of steps before `before_step`, which nothing names any more.

        The first step that an op in flight belongs to, at most `before_step`: what earlier steps have used
        is free. Waits for an accelerator that is more than MAX_STEPS_BEHIND steps behind. Raises if any op
        has failed.
        """
        first = before_step
        for op_id in [op_id for op_id in self._runs if op_id.step < before_step]:
            run = self._runs[op_id]
            if run.mark is not None and op_id.step < before_step - MAX_STEPS_BEHIND:
                run.finished.wait()
                self._wait_for_mark(run)
            is_over = False
            with self._failing(run):
                is_over = run.is_over()
            if is_over:
                del self._runs[op_id]
            else:
                first = min(first, op_id.step)
        self._report()
        self._raise_failure()
        return first

    def close(self) -> None:
        """Finish what is in flight, unless an op has failed, and join the lanes; raise if one fails now."""
        try:
            if self._failure is None:
                self.drain()
        finally:
            busy = self._lanes.close(timeout_s=10.0 if self._failure is None else 1.0)
            if busy:
                lanes = ", ".join(busy)
                logger.warning("rank %d: lanes still waiting for another worker: %s", self._rank, lanes)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _failing(self, run: _Run) -> Iterator[None]:
        """What is raised inside is the pipeline's failure, in the op of `run`, and goes no further."""
        try:
            yield
        except BaseException as error:
            with self._failure_lock:
                if self._failure is None:
                    op = run.op
                    error.add_note(f"raised in {op.id} on rank {self._rank} (lane {op.lane.value})")
                    self._failure = error
            # Nobody may wait for an op that will never run, or for a peer that waits for this rank.
            for waited_for in [run, *list(self._runs.values())]:
                waited_for.finished.set()

    def _work(self, run: _Run, waits: list[_Run]) -> None:
        """An op's task on its lane: once what it waits for has finished, its work, if nothing has failed."""
        with self._failing(run):
            for earlier in waits:
                earlier.finished.wait()
            if self._failure is None:
                self._start(run, [earlier.mark for earlier in waits])
            else:
                run.finished.set()

    def _start(self, run: _Run, after: list[Mark | None]) -> None:
        """Do an op's work, or queue it; what it leaves under way is waited for elsewhere."""
        is_timed = bool(run.observers)
        with self._streams.section(run.op.lane, after):
            run.started = run.now()
            run.begin = self._streams.mark(timed=True) if is_timed else None
            pending = self._handlers[run.op.kind](run.op)
            run.returned = run.now()
            queued = self._streams.mark(timed=is_timed)
        if pending is None:
            self._finish(run, queued, run.returned)
        else:
            self._lanes.submit_transfer(partial(self._arrive, run, pending, queued))

    def _arrive(self, run: _Run, pending: Pending, queued: Mark | None) -> None:
        """An op's second task, on the thread of the transfers: wait for what it has left under way."""
        with self._failing(run):
            run.pending = pending if queued is not None else None
            with self._streams.section("transfers", (queued,)):
                pending.wait()
                arrived = self._streams.mark(timed=bool(run.observers))
            self._finish(run, arrived, run.now())

    def _finish(self, run: _Run, mark: Mark | None, finished: float) -> None:
        """Tell the observers, later if the device has yet to pass `mark`; let go on who waits for the op."""
        run.mark = mark
        if run.begin is not None:
            self._timed.append(run)
        elif run.observers:
            run.tell(OpEvent(run.op, run.issued, run.started, run.returned, finished))
        run.finished.set()

    def _wait_for_mark(self, run: _Run) -> None:
        """Block until the device has passed it; not after a failure, when it may never."""
        if run.mark is not None and self._failure is None:
            with self._failing(run):
                run.mark.wait()

    def _report(self) -> None:
        """Tell the observers of the timed ops whose mark has passed."""
        for _ in range(len(self._timed)):
            run = self._timed.popleft()
            assert run.begin is not None
            assert run.mark is not None
            with self._failing(run):
                if not run.mark.has_passed():
                    self._timed.append(run)
                    continue
                begin, end = self._streams.seconds(run.begin), self._streams.seconds(run.mark)
                run.tell(OpEvent(run.op, run.issued, begin, end, end))
