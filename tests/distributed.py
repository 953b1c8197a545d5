"""Run a function on several worker processes that share a gloo process group.

    def worker(rank: int, num_workers: int, offset: int) -> float:
        total = torch.tensor([float(rank + offset)])
        dist.all_reduce(total)
        return total.item()

    assert run_workers(worker, 2, 10) == [21.0, 21.0]

Workers are forked from a server process that has torch and torchrec loaded and has run no operator, so each
call gets fresh processes for a few milliseconds instead of the seconds that importing costs.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "torchrec"])


# What gloo says to a worker whose peer has died.
_LOST_PEER = ("Connection reset by peer", "Connection closed by peer")


class WorkerError(RuntimeError):
    """A worker died, or raised something that cannot travel to the parent."""


@dataclass(frozen=True)
class _Report:
    """What a worker sends home: a pickled value or exception, and when it was sent (system-wide clock)."""

    value: bytes | None
    error: bytes | None
    traceback: str
    sent_at: float


@dataclass(frozen=True)
class _Worker:
    rank: int
    process: ForkServerProcess
    pipe: Connection
    stacks: Path
    """Where the worker's faulthandler writes when it crashes or is aborted."""


def run_workers(
    function: Callable[..., Any], num_workers: int, *args: Any, timeout_s: float = 60, threads: int = 1
) -> list[Any]:
    """Return `function(rank, num_workers, *args)` of every rank, in rank order.

    `function` must be defined at the top level of a module; arguments and results are pickled. The default
    process group (gloo) is ready when it is called, with `threads` torch threads a process. The first
    exception of a worker is raised here with its own type and its traceback as a note. A worker that dies
    without one gives a WorkerError, and a run longer than `timeout_s` a TimeoutError with the stack of every
    worker that was still busy. No worker outlives the call.
    """
    job = pickle.dumps((function, args))
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="workers-") as folder:
        workers: list[_Worker] = []
        try:
            for rank in range(num_workers):
                stacks = Path(folder) / f"rank-{rank}"
                here, there = _CONTEXT.Pipe()
                arguments = (job, rank, num_workers, store.port, there, str(stacks), timeout_s, threads)
                process = _CONTEXT.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                there.close()
                workers.append(_Worker(rank, process, here, stacks))
            return _collect(workers, time.monotonic() + timeout_s, timeout_s)
        finally:
            _stop(workers)


def _serve(
    job: bytes,
    rank: int,
    num_workers: int,
    port: int,
    pipe: Connection,
    stacks: str,
    timeout_s: float,
    threads: int,
) -> None:
    """A worker's life: join the group, run, report, wait until every rank has reported, and leave."""
    file = Path(stacks).open("w")  # noqa: SIM115 - open as long as the process lives
    faulthandler.enable(file=file)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        function, args = pickle.loads(job)
        # The group's own limit is the later one, so that a hang is reported by the parent, with stacks.
        limit = timedelta(seconds=timeout_s + 30)
        store = dist.TCPStore("localhost", port, is_master=False, wait_for_workers=False, timeout=limit)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_workers, timeout=limit)
        report = _Report(pickle.dumps(function(rank, num_workers, *args)), None, "", time.monotonic())
    except BaseException as error:
        report = _Report(None, _pickle_error(error), traceback.format_exc(), time.monotonic())
    pipe.send_bytes(pickle.dumps(report))
    pipe.recv_bytes()
    os._exit(0)  # gloo's threads now and then abort a normal interpreter exit


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _pickle_error(error: BaseException) -> bytes | None:
    """The exception, if it survives a round trip and is an ordinary one."""
    if not isinstance(error, Exception):
        return None
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data


def _collect(workers: list[_Worker], deadline: float, timeout_s: float) -> list[Any]:
    """Wait for every report; raise on the first failure."""
    values: dict[int, Any] = {}
    while len(values) < len(workers):
        busy = {worker.pipe: worker for worker in workers if worker.rank not in values}
        ready = connection.wait(list(busy), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(_timeout_message(list(busy.values()), timeout_s))
        received = [_receive(busy[pipe]) for pipe in ready if isinstance(pipe, Connection)]
        failures = [(rank, report) for rank, report in received if report.value is None]
        if failures:
            _raise(
                *_cause(_first(failures), [worker for worker in busy.values() if worker.pipe not in ready])
            )
        for rank, report in received:
            assert report.value is not None
            values[rank] = pickle.loads(report.value)
    for worker in workers:
        worker.pipe.send_bytes(b"go")
    return [values[rank] for rank in range(len(workers))]


def _first(failures: list[tuple[int, _Report]]) -> tuple[int, _Report]:
    """The earliest, as peers fail in consequence; but a killed worker may be noticed after its loss."""
    return min(failures, key=lambda failure: (_is_loss(failure[1]), failure[1].sent_at))


def _is_loss(report: _Report) -> bool:
    return any(text in report.traceback for text in _LOST_PEER)


def _cause(failure: tuple[int, _Report], others: list[_Worker]) -> tuple[int, _Report]:
    """The failure itself, or the end of the worker that it was the loss of: that may be noticed later."""
    if not _is_loss(failure[1]):
        return failure
    ended = connection.wait([worker.process.sentinel for worker in others], timeout=2.0)
    return next((_receive(worker) for worker in others if worker.process.sentinel in ended), failure)


def _receive(worker: _Worker) -> tuple[int, _Report]:
    try:
        report = pickle.loads(worker.pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        worker.process.join(5)
        message = f"exited with code {worker.process.exitcode}\n{worker.stacks.read_text()}"
        report = _Report(None, None, message, time.monotonic())
    assert isinstance(report, _Report)
    return worker.rank, report


def _raise(rank: int, report: _Report) -> None:
    if report.error is None:
        raise WorkerError(f"rank {rank}: {report.traceback}")
    error = pickle.loads(report.error)
    error.add_note(f"on rank {rank}:\n{report.traceback}")
    raise error


def _timeout_message(busy: list[_Worker], timeout_s: float) -> str:
    for worker in busy:
        if worker.process.pid is not None and worker.process.is_alive():
            os.kill(worker.process.pid, signal.SIGABRT)
    lines = [f"{len(busy)} worker(s) still busy after {timeout_s:g} s"]
    for worker in busy:
        worker.process.join(5)
        lines.append(f"rank {worker.rank}:\n{worker.stacks.read_text()}")
    return "\n".join(lines)


def _stop(workers: list[_Worker]) -> None:
    """Give workers that were told to go a moment, then end whatever is left."""
    for worker in workers:
        worker.pipe.close()
    for worker in workers:
        worker.process.join(0.5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
