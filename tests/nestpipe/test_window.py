"""The choice of the window: its cost model, and what it chooses on a free and on a slow fabric."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from nestpipe import NestPipe, RowWiseAdagrad, schedules
from nestpipe.transport import Transport
from nestpipe.window import (
    PROBE_MICRO_BATCHES,
    WindowChooser,
    WindowCosts,
    choose_cuts,
    fit_costs,
    window_ms,
)
from tests.distributed import run_workers
from tests.nestpipe.models import Batch, Data, Model

FREE = WindowCosts(0.5, 0.05, 10.0, 0.5, 0.5, 0.05)
SLOW = WindowCosts(40.0, 0.05, 100.0, 0.5, 40.0, 0.05)


def test_one_micro_batch_is_a_sum() -> None:
    assert window_ms(SLOW, (1,)) == pytest.approx(40.05 + 100.5 + 40.05)


def test_equal_cuts_expose_one_share_at_each_end() -> None:
    costs = WindowCosts(16.0, 0.0, 100.0, 0.0, 16.0, 0.0)
    for num in (2, 4, 8):
        assert window_ms(costs, (1,) * num) == pytest.approx(100.0 + 32.0 / num)


def test_a_window_cannot_be_shorter_than_its_transfers() -> None:
    costs = WindowCosts(300.0, 0.0, 100.0, 0.0, 300.0, 0.0)
    assert window_ms(costs, (1,) * 8) >= 600.0


def test_choices() -> None:
    assert choose_cuts(FREE) == (1,)
    assert len(choose_cuts(SLOW)) >= 4
    assert window_ms(SLOW, choose_cuts(SLOW)) < window_ms(SLOW, (1,) * 8)


def test_fit_meets_both_measured_steps() -> None:
    one = {"exchange": 5.0, "compute": 20.0, "reduce": 6.0, "step": 36.0}
    probe = {"exchange": 8.5, "compute": 27.0, "reduce": 9.5, "step": 33.0}
    costs = fit_costs(one, probe)
    assert costs.exchange_per_micro_batch_ms == pytest.approx(0.5)
    assert window_ms(costs, (1,)) == pytest.approx(one["step"])
    assert window_ms(costs, (1,) * PROBE_MICRO_BATCHES) == pytest.approx(probe["step"])


class SlowLink:
    """All2All of rows over a link that carries `bytes_per_ms`, one transfer behind the other."""

    def __init__(self, bytes_per_ms: float) -> None:
        self._bytes_per_ms = bytes_per_ms
        self._free_at = 0.0
        self._real = Transport.all_to_all

    def all_to_all(
        self,
        transport: Transport,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
    ) -> Any:
        work = self._real(transport, output, input, output_splits, input_splits)
        if not input.dtype.is_floating_point:
            return work
        busy_s = input.numel() * input.element_size() / self._bytes_per_ms / 1e3
        self._free_at = max(self._free_at, time.perf_counter()) + busy_s
        return Delayed(work, self._free_at)


class Delayed:
    """A collective that is done when it is, but not before its time."""

    def __init__(self, work: Any, done_at: float) -> None:
        self._work, self._done_at = work, done_at

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        time.sleep(max(0.0, self._done_at - time.perf_counter()))


class Device(Model):
    """Takes a modelled time a sample, as a busy accelerator would."""

    def __init__(self, ms_per_sample: float) -> None:
        super().__init__()
        self._ms_per_sample = ms_per_sample

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        until = time.perf_counter() + self._ms_per_sample * batch.labels.numel() / 1e3
        result = super().forward(batch)
        time.sleep(max(0.0, until - time.perf_counter()))
        return result


def _choose(rank: int, num_workers: int, bytes_per_ms: float | None) -> tuple[tuple[int, ...], int]:
    if bytes_per_ms is not None:
        link = SlowLink(bytes_per_ms)
        Transport.all_to_all = lambda transport, *args: link.all_to_all(transport, *args)  # type: ignore[method-assign]
    data = Data(num_samples=64)
    with NestPipe(
        Device(1.5),
        sparse_optimizer=RowWiseAdagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        schedule=schedules.nestpipe_chosen(),
    ) as pipeline:
        num_steps = WindowChooser.num_steps(pipeline.schedule.look_ahead)
        batches = data.batches(rank, num_workers, num_steps + 10)
        for _ in range(num_steps):
            pipeline.progress(batches)
        pipeline.progress(batches)
        return pipeline.window.cuts, pipeline._engine.states[num_steps].schedule.num_micro_batches


@pytest.mark.timed
def test_auto_takes_one_micro_batch_on_a_free_fabric() -> None:
    assert run_workers(_choose, 2, None) == [((1,), 1)] * 2


@pytest.mark.timed
def test_auto_splits_the_window_where_transfers_are_slow() -> None:
    """About 96 ms of compute, 40 ms a transfer: every rank chooses alike, and by the end trains so."""
    (cuts, used), other = run_workers(_choose, 2, 170.0)
    assert len(cuts) >= 4
    assert used == len(cuts)
    assert other == (cuts, used)
