"""One launch of workers through torchrun's own machinery, and what to say when one of them dies.

A process that torchrun or Slurm has started as one of several joins the others instead.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness.errors import LaunchError, is_for_user
from harness.job import Job
from harness.join import join
from harness.place import find_place
from harness.worker import WorkerReport, run_worker

# CUDA reads them when it starts. A kernel that is loaded at its first launch may wait for another lane's
# transfer, and streams that share a hardware queue for each other: ranks could wait for each other for ever.
_FOR_SEVERAL_GPUS = {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}

_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class Launchable(Protocol):
    """A job: data that travels to the workers."""

    @property
    def timeout_s(self) -> float:
        """Seconds that a worker waits for its peers."""
        ...


AnyJob = TypeVar("AnyJob", bound=Launchable)
Report = TypeVar("Report")


def launch(job: Job, num_workers: int) -> list[WorkerReport]:
    """Run the comparison on `num_workers` processes and return their reports in rank order."""
    return launch_function(run_worker, job, num_workers)


def launch_function(function: Callable[[AnyJob], Report], job: AnyJob, num_workers: int) -> list[Report]:
    """`function(job)` of `num_workers` processes, in rank order; LaunchError where one fails.

    `function` is one at the top level of a module that runs its work by `harness.process.run_recorded`. The
    processes are new ones, or those that torchrun or Slurm has started; of these only rank 0 returns.
    """
    place = find_place(os.environ)
    if place is not None:
        return join(function, job, num_workers, place, job.timeout_s)
    with (
        tempfile.TemporaryDirectory(prefix="nestpipe-") as folder,
        _borrowed_process(),
        _environment(num_workers),
    ):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_workers,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.1,
            shutdown_timeout=5,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            reports = elastic_launch(config, function)(job)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise _explain(rank, failure, num_workers, job.timeout_s) from None
        except SignalException:
            # Torchrun has ended the workers; a click command turns this into "Aborted!".
            raise KeyboardInterrupt from None
    return [reports[rank] for rank in range(num_workers)]


@contextmanager
def _borrowed_process() -> Iterator[None]:
    """Keep torchrun's log off the screen, and take its signal handlers back afterwards.

    It logs every failure, peers' included; the LaunchError says what matters.
    """
    levels = {name: logging.getLogger(name).level for name in _torchrun_loggers()}
    handlers = {number: signal.getsignal(number) for number in _HANDLED_SIGNALS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _environment(num_workers: int) -> Iterator[None]:
    """What workers inherit that may have a GPU each; the user's own values stay, and this process's."""
    missing = _FOR_SEVERAL_GPUS.keys() - os.environ.keys() if num_workers > 1 else set[str]()
    os.environ.update({name: _FOR_SEVERAL_GPUS[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def _torchrun_loggers() -> list[str]:
    # Each module's logger has a level of its own, so quieting their parent would do nothing.
    prefixes = ("torch.distributed.elastic", "torch.multiprocessing")
    return [name for name in logging.root.manager.loggerDict if name.startswith(prefixes)]


def _explain(rank: int, failure: ProcessFailure, num_workers: int, timeout_s: float) -> LaunchError:
    where = f"rank {rank} of {num_workers} (pid {failure.pid}) ended with exit code {failure.exitcode}"
    recorded = failure.error_file_data.get("message") if failure.error_file_data else None
    if isinstance(recorded, dict):
        cause = str(recorded["message"])
        trace = str(recorded["extraInfo"]["py_callstack"])
        if is_for_user(cause, trace):
            return LaunchError(f"{cause.partition(': ')[2]} (rank {rank}, exit code {failure.exitcode})")
        return LaunchError(f"{where}: {cause}{_way_out(cause, timeout_s)}", trace)
    if failure.exitcode < 0:
        return LaunchError(
            f"{where} ({failure.signal_name()}); if memory ran out, use fewer --workers, a smaller "
            "--set batch_size=... or fewer methods at a time"
        )
    return LaunchError(f"{where} without an exception; run it alone (--workers 1) to see what it prints")


def _way_out(cause: str, timeout_s: float) -> str:
    if "imed out" in cause:
        return f" (a worker waits {timeout_s:g} s for its peers; --timeout raises that)"
    return ""
