"""Several workers whose lanes own streams, on a fake accelerator each: the same training as on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nestpipe import RowWiseAdagrad, schedules
from nestpipe.schedule import Schedule
from tests.distributed import run_workers
from tests.nestpipe.fake_accelerator import stand_in
from tests.nestpipe.models import Data
from tests.nestpipe.training import State, build, step_until_stop, weights

DATA = Data(dtype=torch.float64)
OPTIMIZER = RowWiseAdagrad(lr=0.05)
NUM_WORKERS = 2
SHORTEST = 4


def _train(schedule: Schedule, rank: int, options: dict[str, Any]) -> tuple[list[float], State]:
    """To uneven ends, through an evaluation that needs rows of steps in flight, and on with new batches."""
    own = DATA.batches(rank, NUM_WORKERS, SHORTEST + 3 * rank)
    with build(DATA, schedule, OPTIMIZER, **options) as pipeline:
        losses = [pipeline.progress(own)[0].item() for _ in range(2)]
        losses += [loss.item() for _, loss, _ in pipeline.evaluate(DATA.batches(rank, NUM_WORKERS, 1 + rank))]
        losses += step_until_stop(pipeline, own)
        losses += step_until_stop(pipeline, DATA.batches(rank, NUM_WORKERS, 2, first_step=SHORTEST))
        return losses, weights(pipeline.state_dict())


def _both(
    rank: int, num_workers: int, schedule: Schedule, options: dict[str, Any]
) -> tuple[tuple[list[float], State], tuple[list[float], State], list[str]]:
    on_cpu = _train(schedule, rank, options)
    with pytest.MonkeyPatch.context() as patch:
        fake = stand_in(patch)
        with fake.recording():
            on_device = _train(schedule, rank, options)
    assert fake.num_operators > 1000
    return on_cpu, on_device, fake.races


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        (schedules.sync(), {}),
        (schedules.fwp(2), {}),
        (schedules.dbp(), {}),
        (schedules.dbp(), {"check_bounds": True}),
        (schedules.uniemb(), {}),
        (schedules.nestpipe(3), {}),
        (schedules.nestpipe(3), {"replicas": 2, "sync_every": 2}),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else "-".join(value) or "plain",
)
def test_workers_train_on_devices_as_on_cpus(schedule: Schedule, options: dict[str, Any]) -> None:
    for rank, (on_cpu, on_device, races) in enumerate(run_workers(_both, NUM_WORKERS, schedule, options)):
        assert races == []
        assert len(on_cpu[0]) == SHORTEST + 1 + rank + 2
        assert on_device[0] == on_cpu[0]
        assert all(torch.equal(on_device[1][name], weight) for name, weight in on_cpu[1].items())
