"""The timed loop: methods take turns, in rounds, on the same batches."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

import torch
import torch.distributed as dist

from baselines.interface import Runner, StepTimes
from harness.job import Plan
from nestpipe.streams import Accelerator, TorchAccelerator


@dataclass
class Contestant:
    """A method at work on this worker, and what was measured of it."""

    name: str
    runner: Runner
    batches: Iterator[Any]
    step_ms: list[float] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)


class Clock(Protocol):
    """Takes the time of one turn's steps."""

    def stamp(self) -> None:
        """Note that a step is over, or before the first one that it begins."""
        ...

    def step_ms(self) -> list[float]:
        """Milliseconds from each stamp to the next; to be asked once the method is drained."""
        ...


class HostClock:
    """For a CPU, which has done a step's work when `progress` returns."""

    def __init__(self) -> None:
        self._stamps: list[float] = []

    def stamp(self) -> None:
        self._stamps.append(perf_counter())

    def step_ms(self) -> list[float]:
        return [1e3 * (end - start) for start, end in pairwise(self._stamps)]


class DeviceClock:
    """For an accelerator, by its own time: `progress` returns while it is still steps behind."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._stamps: list[Any] = []

    def stamp(self) -> None:
        event = self._accelerator.new_event(timed=True)
        event.record(self._accelerator.current_stream())
        self._stamps.append(event)

    def step_ms(self) -> list[float]:
        # Not every method's drain waits for the device.
        self._stamps[-1].synchronize()
        return [float(start.elapsed_time(end)) for start, end in pairwise(self._stamps)]


def clock_of(device: torch.device) -> Clock:
    """A new clock for steps whose dense work is on `device`."""
    return HostClock() if device.type == "cpu" else DeviceClock(TorchAccelerator(device))


def run_rounds(
    contestants: list[Contestant], plan: Plan, device: torch.device, after_turn: Callable[[int], None]
) -> None:
    """Warm every method up, then measure them in rounds; `after_turn` is told the steps of each turn.

    The order rotates from round to round, so that no method always follows the same other one.
    """
    for contestant in contestants:
        _take_turn(contestant, clock_of(device), plan.num_warmup_steps, 0)
        after_turn(plan.num_warmup_steps)
    for index, num_measured in enumerate(plan.measured):
        first = index % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            _take_turn(contestant, clock_of(device), plan.num_settle_steps, num_measured)
            after_turn(plan.num_settle_steps + num_measured)


def _take_turn(contestant: Contestant, clock: Clock, num_dropped: int, num_measured: int) -> None:
    """Step `num_dropped + num_measured` times and keep what the last `num_measured` steps took.

    A step lasts from the end of one to the end of the next: on a CPU from return to return of `progress`, on
    an accelerator from the end of what was queued on the current stream until then; workers start a turn
    together.
    """
    gc.collect()
    dist.barrier()
    clock.stamp()
    losses = []
    for _ in range(num_dropped + num_measured):
        losses.append(_step(contestant))
        clock.stamp()
    contestant.runner.drain()
    times = contestant.runner.step_times()
    assert len(times) == num_dropped + num_measured, (
        f"{contestant.name} reported {len(times)} steps, not {num_dropped + num_measured}"
    )
    contestant.step_ms += clock.step_ms()[num_dropped:]
    contestant.times += times[num_dropped:]
    contestant.losses += losses[num_dropped:]


def _step(contestant: Contestant) -> torch.Tensor:
    try:
        loss, _ = contestant.runner.progress(contestant.batches)
    except StopIteration:
        raise RuntimeError(f"{contestant.name} ran out of batches before its last step") from None
    # A copy: the method may reuse the memory, and reading the value here would wait for the device.
    return loss.detach().clone()
