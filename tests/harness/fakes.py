"""Methods and a workload small enough to reason about, for tests of the harness alone.

The methods train a real model data-parallel over the process group; some of them misbehave. They travel to
the workers of a launch by the names of `find_method` and `make_workload`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from baselines.interface import Exactness, Method, Runner, Setup, StepTimes
from harness.job import Job
from harness.options import Settings

BATCH_SIZE = 6


@dataclass
class FakeBatch:
    keys: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> FakeBatch:
        return FakeBatch(self.keys.to(device), self.labels.to(device))

    def split(self, num_parts: int) -> list[FakeBatch]:
        parts = zip(self.keys.chunk(num_parts), self.labels.chunk(num_parts), strict=True)
        return [FakeBatch(keys, labels) for keys, labels in parts]


class FakeModel(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.table = nn.Embedding(20, 4, dtype=dtype)
        self.table.weight.data = torch.randn(20, 4, generator=generator).to(dtype)
        self.output = nn.Linear(4, 1, dtype=dtype)
        self.output.weight.data = torch.randn(1, 4, generator=generator).to(dtype)
        self.output.bias.data.fill_(0.5)

    def forward(self, batch: FakeBatch) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.output(torch.tanh(self.table(batch.keys).mean(1))).squeeze(1)
        return (output - batch.labels.to(output.dtype)).square().mean(), output


class FakeWorkload:
    name = "fake"

    def __init__(self, seed: int) -> None:
        self.batch_size = BATCH_SIZE
        self._seed = seed

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        return FakeModel(dtype).to(device)

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[Any]:
        step = start_step
        while True:
            generator = torch.Generator().manual_seed((self._seed * 1000 + step) * 10 + rank)
            keys = torch.randint(0, 20, (BATCH_SIZE, 3), generator=generator)
            yield FakeBatch(keys, torch.rand(BATCH_SIZE, generator=generator))
            step += 1


class FakeRunner(Runner):
    """Averages gradients over the workers; `misbehave` is called with (rank, step) before each step."""

    def __init__(self, method: FakeMethod, setup: Setup) -> None:
        self._method = method
        self._model = setup.model
        self._optimizer = setup.dense_optimizer(list(setup.model.parameters()))
        self._times: list[StepTimes] = []
        self._ahead: list[Any] = []
        self._num_steps = 0
        self.note = f"micro_batches={setup.options['micro_batches']}" if setup.options else ""
        self.note += ", bounds checked" if setup.check_bounds else ""

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        while len(self._ahead) < 1 + self._method.look_ahead:
            self._ahead.append(next(batches))
        start = time.perf_counter()
        self._method.misbehave(dist.get_rank(), self._num_steps)
        self._optimizer.zero_grad()
        loss, output = self._differentiate(self._ahead.pop(0))
        for parameter in self._model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        if self._num_steps != self._method.skipped_step:
            self._optimizer.step()
        self._num_steps += 1
        step_ms = 1e3 * (time.perf_counter() - start)
        self._times.append(StepTimes(step_ms, 0.25 * step_ms, 0.25 * step_ms, 0.5 * step_ms))
        return loss, output

    def _differentiate(self, batch: FakeBatch) -> tuple[torch.Tensor, torch.Tensor]:
        losses, outputs = [], []
        for part in batch.split(self._method.num_parts):
            loss, output = self._model(part)
            (loss / self._method.num_parts).backward()
            losses.append(loss.detach())
            outputs.append(output)
        return torch.stack(losses).mean(), torch.cat(outputs)

    def step_times(self) -> list[StepTimes]:
        times, self._times = self._times, []
        return times

    def state_dict(self) -> dict[str, torch.Tensor]:
        if dist.get_rank():
            return {}
        return {name: value + self._method.offset for name, value in self._model.state_dict().items()}


class FakeMethod(Method):
    exactness: Exactness | None = None
    look_ahead = 0
    offset = 0.0
    num_parts = 1
    """Parts of equal size in which it adds up the gradients of a batch."""
    skipped_step: int | None = None
    """The step whose update it forgets."""

    def __init__(self, name: str, exactness: Exactness | None = None, **changes: Any) -> None:
        self.name, self.summary, self.exactness = name, f"the fake {name}", exactness
        for key, value in changes.items():
            assert hasattr(self, key)
            setattr(self, key, value)

    def build(self, setup: Setup) -> Runner:
        return FakeRunner(self, setup)

    def misbehave(self, rank: int, step: int) -> None:
        pass


class DyingMethod(FakeMethod):
    """Its last worker is killed at step 3 if there is more than one."""

    def misbehave(self, rank: int, step: int) -> None:
        if step == 3 and rank == dist.get_world_size() - 1 > 0:
            os.kill(os.getpid(), signal.SIGKILL)


class RaisingMethod(FakeMethod):
    """A bug on rank 0 at step 2."""

    def misbehave(self, rank: int, step: int) -> None:
        if step == 2 and rank == 0:
            torch.zeros(2) @ torch.zeros(3)


class HangingMethod(FakeMethod):
    """Rank 0 stops answering at step 1."""

    def misbehave(self, rank: int, step: int) -> None:
        if step == 1 and rank == 0:
            signal.pause()


class RefusingMethod(FakeMethod):
    """Its options never suit it."""

    def build(self, setup: Setup) -> Runner:
        from harness.options import parse_worker_counts

        parse_worker_counts("0")
        raise AssertionError


_SAME = Exactness("bitwise", "plain", 0.0)
# Less than float32 can keep, so that every reordering needs an arbiter.
_TIGHT = Exactness("reordered", "plain", 1e-9)
_TIGHT32 = Exactness("library", "plain32", 1e-9)
METHODS: dict[str, FakeMethod] = {
    method.name: method
    for method in (
        FakeMethod("plain", supports_float64=True),
        FakeMethod("plain32"),
        FakeMethod("same", _SAME),
        FakeMethod("ahead", _SAME, look_ahead=3),
        FakeMethod("off", Exactness("reordered", "plain", 1e-6), offset=1e-3),
        FakeMethod("broken", Exactness("approximate", "plain", None), offset=float("nan")),
        FakeMethod("rough", Exactness("approximate", "plain", None), offset=1e-3),
        FakeMethod("needy", extra_warmup_steps=4),
        FakeMethod("reordered", _TIGHT, num_parts=3, supports_float64=True),
        FakeMethod("reordered32", _TIGHT, num_parts=3),
        FakeMethod("against32", _TIGHT32, num_parts=3, supports_float64=True),
        FakeMethod("skipping", _TIGHT, skipped_step=3, supports_float64=True),
        FakeMethod("skipping32", _TIGHT, skipped_step=3),
        FakeMethod("nudged", _TIGHT, offset=1e-6, supports_float64=True),
        FakeMethod("shuffled", _SAME, num_parts=3, supports_float64=True),
        DyingMethod("dying"),
        RaisingMethod("raising"),
        HangingMethod("hanging"),
        RefusingMethod("refusing"),
    )
}


def find_method(name: str) -> Method:
    return METHODS[name]


def make_workload(
    name: str, settings: Mapping[str, str], seed: int, num_workers: int, cache_dir: Path
) -> FakeWorkload:
    return FakeWorkload(seed)


def fake_job(*methods: str, num_steps: int = 7, check: bool = False, **changes: Any) -> Job:
    """A job on the fakes, short enough for a test."""
    return Job(
        methods=methods,
        workload="fake",
        num_steps=num_steps,
        num_warmup_steps=2,
        seed=3,
        cache_dir=Path("unused"),
        settings=changes.pop("settings", Settings()),
        check_exactness=check,
        timeout_s=changes.pop("timeout_s", 30.0),
        find_method=find_method,
        make_workload=make_workload,
        **changes,
    )
