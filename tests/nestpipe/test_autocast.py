"""bfloat16 autocast around progress and evaluate: schedules agree as far as one rounding lets them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from nestpipe import NestPipe, schedules
from nestpipe.optim import SGD
from nestpipe.schedule import Schedule
from tests.distributed import run_workers
from tests.nestpipe.models import Batch, Data, Model
from tests.nestpipe.training import State, difference, weights

NUM_STEPS = 6
DATA = Data(num_samples=32)
FIRST_HELD_OUT = 100
SCHEDULES = {
    "sync": schedules.sync(),
    "dbp": schedules.dbp(),
    "nestpipe 1": schedules.nestpipe(1),
    "nestpipe 4": schedules.nestpipe(4),
}


def bfloat16() -> AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def build(schedule: Schedule, kind: type[Model] = Model) -> NestPipe:
    return NestPipe(
        kind(),
        sparse_optimizer=SGD(0.1),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        schedule=schedule,
    )


def train(
    pipeline: NestPipe,
    rank: int,
    num_workers: int,
    mode: AbstractContextManager[object],
    each: AbstractContextManager[object] | None = None,
) -> tuple[State, list[torch.Tensor]]:
    """The state after training inside `mode`, and what was evaluated halfway."""
    batches = DATA.batches(rank, num_workers, NUM_STEPS)
    with mode:
        for _ in range(NUM_STEPS // 2):
            with each or nullcontext():
                pipeline.progress(batches)
        with each or nullcontext():
            held_out = DATA.batches(rank, num_workers, 2, FIRST_HELD_OUT)
            outputs = [output for _, _, output in pipeline.evaluate(held_out)]
        for _ in range(NUM_STEPS // 2):
            with each or nullcontext():
                pipeline.progress(batches)
    return weights(pipeline.state_dict()), outputs


def _train(rank: int, num_workers: int) -> dict[str, tuple[State, list[torch.Tensor]]]:
    results = {}
    for name, schedule in SCHEDULES.items():
        with build(schedule) as pipeline:
            results[name] = train(pipeline, rank, num_workers, bfloat16())
    with build(schedules.sync()) as pipeline:
        results["float32"] = train(pipeline, rank, num_workers, nullcontext())
    return results


def test_schedules_agree_in_bfloat16() -> None:
    results = run_workers(_train, 2)[0]
    sync, outputs = results["sync"]
    assert all(output.dtype is torch.bfloat16 for output in outputs)
    for name in ("dbp", "nestpipe 1"):
        state, evaluated = results[name]
        assert all(torch.equal(state[parameter], sync[parameter]) for parameter in sync), name
        assert all(map(torch.equal, evaluated, outputs)), name
    truth, precise = results["float32"]
    error = difference(sync, truth)
    assert error > 1e-4, "the products were not rounded"
    # Smaller micro-batches round other sums: other errors, but no larger ones.
    state, evaluated = results["nestpipe 4"]
    assert difference(state, truth) < 2 * error

    def distance(mine: list[torch.Tensor]) -> float:
        return float((torch.stack(mine) - torch.stack(precise)).abs().max())

    assert distance(evaluated) < 2 * distance(outputs)


def test_one_autocast_around_everything_is_one_around_each_call() -> None:
    """What autocast remembers of weights must outlive neither their update nor an evaluation."""
    results = []
    for mode, each in ((bfloat16(), None), (nullcontext(), bfloat16())):
        with build(schedules.nestpipe(2)) as pipeline:
            results.append(train(pipeline, 0, 1, mode, each))
    (state, outputs), (their_state, their_outputs) = results
    assert all(torch.equal(state[name], their_state[name]) for name in state)
    assert all(map(torch.equal, outputs, their_outputs))


class InFloat32(Model):
    """Asks for float32 in all it does."""

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", enabled=False):
            return super().forward(batch)


def test_backward_keeps_the_formats_of_forward() -> None:
    results = []
    for mode in (bfloat16(), nullcontext()):
        with build(schedules.nestpipe(2), InFloat32) as pipeline:
            results.append(train(pipeline, 0, 1, mode)[0])
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
