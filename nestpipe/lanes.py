"""Lanes: one thread each, running its ops in issue order; transfers finish elsewhere.

All device code of the executor lives here: on an accelerator a lane owns a stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

import torch

from nestpipe.schedule import Lane


class Pending(Protocol):
    """A transfer under way: `wait` returns when its result can be read."""

    def wait(self) -> None: ...


class Worker:
    """A thread that runs the callables it is given, in order, until closed."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        self._queue.put(task)

    def close(self, timeout_s: float) -> bool:
        """Stop after the tasks at hand; False if the thread is still busy after `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task()
            del task  # the last op's buffers must not live until the next one comes


class LaneThreads:
    """The threads of a pipeline: one a lane, and one a lane for what finishes asynchronously."""

    def __init__(self, name: str) -> None:
        self._issue = {lane: Worker(f"{name}-{lane.value}") for lane in Lane}
        self._finish = {lane: Worker(f"{name}-{lane.value}-finish") for lane in (Lane.COMM,)}

    def submit(self, lane: Lane, task: Callable[[], None]) -> None:
        """Run `task` on the lane's thread, after everything submitted to it before."""
        self._issue[lane].submit(task)

    def finish(self, lane: Lane, task: Callable[[], None]) -> None:
        """Run `task`, which waits for a transfer of this lane, without holding up the lane."""
        self._finish[lane].submit(task)

    def close(self, timeout_s: float) -> list[str]:
        """Join every thread; the lanes still busy after `timeout_s`."""
        busy = [lane.value for lane, worker in self._issue.items() if not worker.close(timeout_s)]
        busy += [f"{lane.value}-finish" for lane, w in self._finish.items() if not w.close(timeout_s)]
        return busy


@dataclass(frozen=True)
class CallerMode:
    """What a thread does not inherit from the caller of `progress`: grad mode and autocast."""

    grad_enabled: bool
    autocast_enabled: bool
    autocast_dtype: torch.dtype
    device_type: str

    @classmethod
    def capture(cls, device: torch.device) -> CallerMode:
        """The calling thread's modes."""
        kind = device.type
        return cls(
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
            kind,
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run a block under these modes."""
        with torch.set_grad_enabled(self.grad_enabled):
            if not self.autocast_enabled:
                yield
                return
            with torch.autocast(self.device_type, dtype=self.autocast_dtype):
                yield
