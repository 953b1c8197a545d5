"""A collective under way on the fabric: real on gloo, through when its modelled time is."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol

import torch
import torch.distributed as dist

from harness.emulation.link import Group, Link, Transfer


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One finished collective of this worker; times are perf_counter seconds."""

    kind: str
    """all_to_all, all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter or barrier."""
    group: Group
    is_float: bool
    num_bytes: int
    """What was charged to this worker's link."""
    issued_s: float
    joined_s: float
    """When the last peer had joined."""
    start_s: float
    """When this worker's link took the transfer up; `end_s` is when it was free again."""
    end_s: float
    done_s: float
    """The later of the modelled finish and the real one, as seen by the first who waited."""


class Owner(Protocol):
    """What a collective needs of its group."""

    def explain(self, work: FabricWork, error: BaseException) -> str:
        """The message of a collective that failed."""
        ...

    def ended(self, work: FabricWork, done_s: float | None) -> None:
        """Told once, when a collective is through, or with None when it has failed."""
        ...

    def complete(self, work: FabricWork, future: torch.futures.Future[Any]) -> None:
        """Complete `future` on another thread once the collective is through."""
        ...


class FabricWork(dist.Work):
    """Handle of a collective; `wait` returns when it is through and raises RuntimeError if it fails.

    The thread that waits does so itself: for gloo, then asleep until the modelled finish. So one group's
    late peer holds up nobody who waits for another group, and a collective costs no change of threads.
    """

    def __init__(
        self,
        work: dist.Work,
        kind: str,
        number: int,
        transfer: Transfer,
        link: Link,
        tensors: list[torch.Tensor],
        result: Any,
        owner: Owner,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.number = number
        """How many collectives the group had issued, this one included."""
        self.transfer = transfer
        self.is_float = bool(tensors) and tensors[0].dtype.is_floating_point
        self._work = work
        self._link = link
        self._result = result
        self._owner = owner
        self._lock = threading.Lock()
        self._has_ended = False
        self._error: RuntimeError | None = None
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the collective is through; `timeout` bounds the real one (None or 0: the group's)."""
        try:
            if timeout:
                self._work.wait(timeout)
            else:
                self._work.wait()
        except RuntimeError as error:
            raise self._failed(error) from error
        self._link.place(self.transfer, perf_counter())
        _sleep_until(self.transfer.due_s)
        self._end()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        if self._has_ended:
            return True
        if not self._work.is_completed():
            return False
        if self._work.is_success():
            self._link.place(self.transfer, perf_counter())
            if perf_counter() < self.transfer.due_s:
                return False
            self._end()
        return True

    def is_success(self) -> bool:
        """Whether the collective is through without an error."""
        return self.is_completed() and self._work.is_success()

    def exception(self) -> BaseException | None:
        """The error of a failed collective that somebody waited for."""
        return self._error

    def result(self) -> Any:
        """The output tensors, in a list."""
        return self._result

    def synchronize(self) -> None:
        """The same as `wait`: there is no stream to order on a CPU."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the output tensors that is completed at the modelled finish, on another thread."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                self._owner.complete(self, self._future)
            return self._future

    def _end(self) -> None:
        with self._lock:
            is_first, self._has_ended = not self._has_ended, True
        if is_first:
            self._owner.ended(self, perf_counter())

    def _failed(self, error: RuntimeError) -> RuntimeError:
        explained = RuntimeError(self._owner.explain(self, error))
        if not self._work.is_completed():
            return explained  # only the caller's patience is over
        self._link.discard(self.transfer)
        with self._lock:
            is_first, self._has_ended = not self._has_ended, True
            self._error = self._error or explained
        if is_first:
            self._owner.ended(self, None)
        return self._error


class FutureThread:
    """Completes the futures of one group's collectives, in issue order; idle groups have no thread.

    A group's own thread, since waiting for one group must not delay another's. Within a group collectives
    finish in issue order anyway.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[FabricWork, torch.futures.Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def complete(self, work: FabricWork, future: torch.futures.Future[Any]) -> None:
        """Complete `future` once `work` is through."""
        self._queue.put((work, future))

    def stop(self, timeout_s: float) -> bool:
        """End after what is queued; False if the thread is still busy after `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future = item
            try:
                work.wait()
                future.set_result(work.result())
            except Exception as error:
                future.set_exception(error)
            del item, work, future  # an idle thread must not keep the last tensors alive


def _sleep_until(time_s: float) -> None:
    while (remaining_s := time_s - perf_counter()) > 0:
        time.sleep(remaining_s)
