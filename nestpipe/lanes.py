"""Lanes: one thread each, running its ops in issue order; transfers finish elsewhere.

The compute lane is the caller's own thread: it waits for the step anyway, and so grad mode, autocast,
the current device, profilers and the allocator's arena are the caller's. On an accelerator a lane owns
a stream besides (`nestpipe.streams`).
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from nestpipe.schedule import Lane

Task = Callable[[], None]

# Lanes that work for a coming batch yield to the current one where threads outnumber cores.
BACKGROUND_LANES = frozenset({Lane.HOST, Lane.COPY, Lane.KEYS, Lane.MEMORY})
BACKGROUND_NICE = 5


class Pending(Protocol):
    """A transfer under way: `wait` returns when its result can be read."""

    def wait(self) -> None: ...


class Worker:
    """A thread that runs the tasks it is given, in order, until closed."""

    def __init__(self, name: str, is_background: bool = False) -> None:
        self._is_background = is_background
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        self._queue.put(task)

    def stop(self) -> None:
        """End after the tasks at hand."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """False if the thread is still busy after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self._is_background and sys.platform == "linux":  # elsewhere niceness is the whole process's
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICE)
        while (task := self._queue.get()) is not None:
            task()
            del task  # the last op's buffers must not live until the next one comes


class Lanes:
    """The threads of a pipeline: one a lane but compute, and one for transfers that are under way."""

    def __init__(self, name: str) -> None:
        threaded = [lane for lane in Lane if lane is not Lane.COMPUTE]
        self._workers = {
            lane: Worker(f"{name}-{lane.value}", is_background=lane in BACKGROUND_LANES) for lane in threaded
        }
        self._transfers = Worker(f"{name}-transfers")
        self._caller: deque[Task] = deque()

    def submit(self, lane: Lane, task: Task) -> None:
        """Run `task` on the lane, after everything submitted to it before."""
        if lane is Lane.COMPUTE:
            self._caller.append(task)
        else:
            self._workers[lane].submit(task)

    def submit_transfer(self, task: Task) -> None:
        """Run `task`, which waits for a transfer, without holding up the lane that issued it."""
        self._transfers.submit(task)

    def run_compute(self, until: threading.Event | None = None) -> None:
        """Run the compute lane's tasks on this thread until `until` is set; all of them without."""
        while self._caller and not (until is not None and until.is_set()):
            self._caller.popleft()()

    def close(self, timeout_s: float) -> list[str]:
        """Join every thread; the names of lanes still busy after `timeout_s` each."""
        named = {lane.value: worker for lane, worker in self._workers.items()}
        named["transfers"] = self._transfers
        for worker in named.values():
            worker.stop()
        return [name for name, worker in named.items() if not worker.join(timeout_s)]
