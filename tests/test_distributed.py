"""The helper that every distributed test stands on."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.distributed import _LOST_PEER, WorkerError, _first, _Report, run_workers


def add_ranks(rank: int, num_workers: int, offset: int) -> tuple[int, torch.Tensor, int]:
    total = torch.tensor([rank + offset])
    dist.all_reduce(total)
    assert dist.get_world_size() == num_workers
    return rank, total, torch.get_num_threads()


def fail_on_last(rank: int, num_workers: int) -> None:
    if rank == num_workers - 1:
        raise ValueError("key 7 of table 'item' is out of range")
    dist.barrier()


def hang(rank: int, num_workers: int) -> None:
    if rank == 0:
        dist.barrier()


def die(rank: int, num_workers: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def return_pid(rank: int, num_workers: int) -> int:
    return os.getpid()


def return_much(rank: int, num_workers: int) -> torch.Tensor:
    return torch.full((3_000_000,), float(rank))


class UnpicklableError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("only one")


def raise_unpicklable(rank: int, num_workers: int) -> None:
    raise UnpicklableError(1, 2)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_returns_every_rank_in_order(num_workers: int) -> None:
    results = run_workers(add_ranks, num_workers, 5)
    expected = sum(range(num_workers)) + 5 * num_workers
    assert [(rank, int(total), threads) for rank, total, threads in results] == [
        (rank, expected, 1) for rank in range(num_workers)
    ]


def test_large_results_do_not_block() -> None:
    for rank, value in enumerate(run_workers(return_much, 2)):
        assert value.shape == (3_000_000,)
        assert bool((value == rank).all())


def test_raises_the_cause_with_its_traceback() -> None:
    with pytest.raises(ValueError, match="key 7 of table 'item'") as caught:
        run_workers(fail_on_last, 2)
    assert "on rank 1" in caught.value.__notes__[0]
    assert "fail_on_last" in caught.value.__notes__[0]


def test_an_exception_that_cannot_travel_is_described() -> None:
    with pytest.raises(WorkerError, match="UnpicklableError"):
        run_workers(raise_unpicklable, 1)


def test_a_death_comes_before_the_loss_that_was_noticed_earlier() -> None:
    lost = _Report(None, None, f"RuntimeError: {_LOST_PEER[0]}", 1.0)
    later_lost = _Report(None, None, f"RuntimeError: {_LOST_PEER[0]}", 4.0)
    died = _Report(None, None, "exited with code -9", 2.0)
    raised = _Report(None, None, "ValueError: key 7", 3.0)
    assert _first([(1, lost), (0, died)]) == (0, died)
    assert _first([(2, raised), (1, lost), (0, died)]) == (0, died)
    assert _first([(1, later_lost), (2, lost)]) == (2, lost)


def test_a_killed_worker_is_named() -> None:
    with pytest.raises(WorkerError, match=r"rank 0: exited with code -9"):
        run_workers(die, 2)


def test_a_hang_ends_at_the_limit_with_the_stack() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="in hang"):
        run_workers(hang, 2, timeout_s=3)
    assert time.monotonic() - start < 15


def test_no_worker_outlives_its_call() -> None:
    pids = run_workers(return_pid, 2)
    assert len(set(pids)) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
