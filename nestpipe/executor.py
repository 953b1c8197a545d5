"""The executor: runs the ops of a schedule, each as soon as what it waits for has finished."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter

from nestpipe.lanes import Lanes, Pending
from nestpipe.schedule import Op, OpId, OpKind
from nestpipe.trace import OpEvent

Handler = Callable[[Op], Pending | None]
Observer = Callable[[OpEvent], None]


class Executor:
    """Issues ops to lanes and tracks which have finished.

    A handler does an op's work on the op's lane. If it returns a Pending, the op finishes when that
    does, while the lane goes on. The compute lane runs inside `run_until` and `drain`. The first exception
    stops everything: later ops are skipped and
    `run_until` raises it, with a note that says which op failed.
    """

    def __init__(self, handlers: Mapping[OpKind, Handler], rank: int) -> None:
        self._handlers = handlers
        self._rank = rank
        self.observers: list[Observer] = []
        """Told of every op that finishes, on its lane's thread; without any, no clock is read."""
        self._lanes = Lanes(f"nestpipe-{rank}")
        self._finished: dict[OpId, threading.Event] = {}
        self._failure: BaseException | None = None
        self._failure_lock = threading.Lock()

    @property
    def failure(self) -> BaseException | None:
        """The first exception that an op raised."""
        return self._failure

    def issue(self, ops: Iterable[Op]) -> None:
        """Hand ops to their lanes; each may depend only on ops issued before or along with it."""
        ops = tuple(ops)
        for op in ops:
            self._finished[op.id] = threading.Event()
        for op in ops:
            waits = [self._finished[ref] for ref in op.after if ref in self._finished]
            self._lanes.submit(op.lane, self._task(op, waits, self._finished[op.id]))

    def run_until(self, op_id: OpId) -> None:
        """Run the compute lane on this thread until `op_id` has finished; raise if any op has failed."""
        if op_id in self._finished:  # a drain forgets what has finished
            self._lanes.run_compute(until=self._finished[op_id])
            self._finished[op_id].wait()
        self._raise_failure()

    def drain(self) -> None:
        """Block until every issued op has finished; raise if any op has failed."""
        self._lanes.run_compute()
        for finished in list(self._finished.values()):
            finished.wait()
        self._finished.clear()
        self._raise_failure()

    def forget(self, before_step: int) -> None:
        """Drop the record of finished ops of steps before `before_step`, which nothing names any more."""
        old = [op_id for op_id, f in self._finished.items() if op_id.step < before_step and f.is_set()]
        for op_id in old:
            del self._finished[op_id]

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
        for finished in list(self._finished.values()):
            finished.set()

    def _task(self, op: Op, waits: list[threading.Event], finished: threading.Event) -> Callable[[], None]:
        observers = tuple(self.observers)
        issued = perf_counter() if observers else 0.0

        def run() -> None:
            for event in waits:
                event.wait()
            started = perf_counter() if observers else 0.0
            pending = None
            if self._failure is None:
                try:
                    pending = self._handlers[op.kind](op)
                except BaseException as error:
                    self._fail(op, error)
            returned = perf_counter() if observers else 0.0

            def finish() -> None:
                if pending is not None:
                    try:
                        pending.wait()
                    except BaseException as error:
                        self._fail(op, error)
                if observers:
                    now = returned if pending is None else perf_counter()
                    event = OpEvent(op, issued, started, returned, now)
                    for observer in observers:
                        observer(event)
                finished.set()

            if pending is None:
                finish()
            else:
                self._lanes.submit_transfer(finish)

        return run
