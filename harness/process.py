"""What every worker process of a launch does around its work: it joins its peers, and leaves them cleanly."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from harness.allocator import keep_freed_memory
from harness.options import Training

STAND_BACK_S = 5.0
_LOST_PEER = ("closed by peer", "reset by peer", "Broken pipe", "Timed out waiting", "timed out")

Job = TypeVar("Job")
Report = TypeVar("Report")


def run_recorded(function: Callable[[Job], Report], job: Job) -> Report:
    """`function(job)`; an exception goes to torchrun's error file and ends this process at once.

    In a process that somebody else's launcher has started it is raised: there nobody reads that file for us.
    """
    try:
        report = record(function)(job)
    except BaseException:
        if multiprocessing.parent_process() is None:
            raise
        # The cause is in torchrun's error file. Threads of a method may be waiting for peers that are
        # gone, and would keep an ordinary exit waiting as well.
        sys.stderr.flush()
        os._exit(1)
    assert report is not None
    return report


@contextmanager
def process_group(training: Training, timeout_s: float, backend: str | None = None) -> Iterator[torch.device]:
    """The default process group and this worker's device.

    The body ends with a barrier of its own, so that no worker leaves while another still needs it. The
    process exits at once after that, without what threads of gloo do to an ordinary exit.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    _quiet_libraries()
    device = _device(training)
    usual = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend or usual, timeout=timedelta(seconds=timeout_s))
    try:
        yield device
    except Exception as error:
        if _lost_peer(error):
            # This worker is a victim: let the launcher see the culprit first.
            time.sleep(STAND_BACK_S)
        raise
    dist.destroy_process_group()
    # Gloo's threads now and then abort an interpreter that exits the ordinary way, after all was done.
    atexit.register(os._exit, 0)


def _quiet_libraries() -> None:
    """Keep advice that TorchRec's authors would have to follow off the user's screen."""
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*broadcast_buffers.*")
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    logging.getLogger().addFilter(
        lambda entry: entry.levelno >= logging.ERROR or "torchrec" not in Path(entry.pathname).parts
    )


def _device(training: Training) -> torch.device:
    if training.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", _device_index())
    torch.cuda.set_device(device)
    return device


def _device_index() -> int:
    """Of this worker's GPU; 0 where its launcher lets it see no other. ValueError where there is none."""
    local_rank, num_devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if num_devices == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0
    if local_rank >= num_devices:
        raise ValueError(
            f"worker {local_rank} of this machine has no GPU: torch sees {num_devices}; start fewer "
            "workers, one a GPU (--workers), or use device=cpu"
        )
    return local_rank


def _lost_peer(error: BaseException | None) -> bool:
    """Whether the exception, or one that led to it, says that a peer went away."""
    while error is not None:
        if any(sign in str(error) for sign in _LOST_PEER):
            return True
        error = error.__cause__ or error.__context__
    return False
