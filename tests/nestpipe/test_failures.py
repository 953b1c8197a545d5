"""A worker that fails or dies: named, and nobody waits for it longer than the group's time limit."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from nestpipe import NestPipe, RowWiseAdagrad, schedules
from nestpipe.schedule import Schedule
from tests.distributed import WorkerError, run_workers
from tests.nestpipe.models import Batch, Data, Model
from tests.nestpipe.training import step_until_stop

GROUP_TIMEOUT_S = 6


class Breaking(Model):
    """Raises, or ends the process, in the forward pass of the third micro-batch it sees."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        if self.calls == 3 and dist.get_rank() == 1:
            if self.how == "exit":
                os._exit(9)
            raise FloatingPointError("loss is not finite")
        return super().forward(batch)


def _train(rank: int, num_workers: int, how: str, schedule: Schedule) -> tuple[str, float]:
    group = dist.new_group(timeout=timedelta(seconds=GROUP_TIMEOUT_S))
    began = time.monotonic()
    pipeline = NestPipe(
        Breaking(how),
        sparse_optimizer=RowWiseAdagrad(lr=0.1),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        schedule=schedule,
        process_group=group,
    )
    try:
        step_until_stop(pipeline, Data().batches(rank, num_workers, 20))
        message = "nothing"
    except Exception as error:
        message = f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"
    pipeline.close()
    return message, time.monotonic() - began


@pytest.mark.parametrize("schedule", [schedules.sync(), schedules.nestpipe(2)], ids=lambda s: s.name)
def test_an_exception_in_a_lane_ends_every_rank(schedule: Schedule) -> None:
    (peer, peer_s), (culprit, _) = run_workers(_train, 2, "raise", schedule)
    op = "compute(2, 0)" if schedule.num_micro_batches == 1 else "compute(1, 0)"
    assert culprit.startswith("FloatingPointError: loss is not finite")
    assert f"raised in {op} on rank 1 (lane compute)" in culprit
    assert "on rank 0" in peer
    assert peer_s < 3 * GROUP_TIMEOUT_S


@pytest.mark.parametrize("schedule", [schedules.sync(), schedules.nestpipe(2)], ids=lambda s: s.name)
def test_a_dead_worker_is_noticed(schedule: Schedule) -> None:
    with pytest.raises(WorkerError, match="rank 1: exited with code 9"):
        run_workers(_train, 2, "exit", schedule)
