"""Who takes the time of a step: on a CPU the host, on an accelerator the device, which lags behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import torch

from baselines.interface import Runner, StepTimes
from harness import rounds
from harness.job import Plan
from harness.rounds import Contestant, HostClock, clock_of, run_rounds

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PLAN = Plan(num_warmup_steps=2, num_settle_steps=2, measured=(3, 2))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds.dist, "barrier", lambda: None)


@dataclass
class FakeDevice:
    """An accelerator that works through what is queued only once the host waits for it."""

    queued_ms: float = 0.0
    done_ms: float = 0.0
    is_drained: bool = True
    streams: list[str] = field(default_factory=list)

    def new_event(self, timed: bool) -> FakeEvent:
        assert timed
        return FakeEvent(self)

    def current_stream(self) -> str:
        return "the caller's"

    def new_stream(self) -> Any:
        raise AssertionError

    def pinned(self, batch: Any) -> Any:
        raise AssertionError


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._at_ms = -1.0

    def record(self, stream: str) -> None:
        self._device.streams.append(stream)
        self._at_ms = self._device.queued_ms

    def synchronize(self) -> None:
        self._device.done_ms = max(self._device.done_ms, self._at_ms)

    def elapsed_time(self, later: FakeEvent) -> float:
        assert self._device.is_drained, "times were read while the method had work in flight"
        assert max(self._at_ms, later._at_ms) <= self._device.done_ms, "the device has not come so far"
        return later._at_ms - self._at_ms


class QueueingRunner(Runner):
    """Its step number i takes the device i milliseconds and the host none; a drain waits for no device."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._num_new = 0

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        self._device.is_drained = False
        self._device.queued_ms += next(batches)
        self._num_new += 1
        return torch.zeros(()), None

    def drain(self) -> None:
        self._device.is_drained = True

    def step_times(self) -> list[StepTimes]:
        num, self._num_new = self._num_new, 0
        return [StepTimes(1.0, 0.0, 0.0, 0.0)] * num

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}


def test_an_accelerator_times_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(rounds, "TorchAccelerator", lambda _: device)
    contestant = Contestant("queueing", QueueingRunner(device), count())
    run_rounds([contestant], PLAN, CUDA, lambda num_steps: None)
    assert contestant.step_ms == [4.0, 5.0, 6.0, 9.0, 10.0]
    assert set(device.streams) == {"the caller's"}
    assert len(contestant.losses) == 5


def test_a_cpu_is_timed_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(clock_of(CPU), HostClock)
    squares = (float(number * number) for number in count())
    monkeypatch.setattr(rounds, "perf_counter", lambda: next(squares))
    contestant = Contestant("queueing", QueueingRunner(FakeDevice()), count())
    run_rounds([contestant], PLAN, CPU, lambda num_steps: None)
    # Stamps 0 to 2 are the warm-up's, 3 to 8 the first round's, 9 to 13 the second's.
    assert contestant.step_ms == [11e3, 13e3, 15e3, 23e3, 25e3]
