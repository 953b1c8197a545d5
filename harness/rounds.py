"""The timed loop: methods take turns, in rounds, on the same batches."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from baselines.interface import Runner, StepTimes
from harness.job import Plan


@dataclass
class Contestant:
    """A method at work on this worker, and what was measured of it."""

    name: str
    runner: Runner
    batches: Iterator[Any]
    step_ms: list[float] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)


def run_rounds(contestants: list[Contestant], plan: Plan, after_turn: Callable[[int], None]) -> None:
    """Warm every method up, then measure them in rounds; `after_turn` is told the steps of each turn.

    The order rotates from round to round, so that no method always follows the same other one.
    """
    for contestant in contestants:
        _take_turn(contestant, plan.num_warmup_steps, 0)
        after_turn(plan.num_warmup_steps)
    for index, num_measured in enumerate(plan.measured):
        first = index % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            _take_turn(contestant, plan.num_settle_steps, num_measured)
            after_turn(plan.num_settle_steps + num_measured)


def _take_turn(contestant: Contestant, num_dropped: int, num_measured: int) -> None:
    """Step `num_dropped + num_measured` times and keep what the last `num_measured` steps took.

    A step lasts from one return of `progress` to the next; workers start a turn together.
    """
    gc.collect()
    dist.barrier()
    stamps = [perf_counter()]
    losses = []
    for _ in range(num_dropped + num_measured):
        losses.append(_step(contestant))
        stamps.append(perf_counter())
    contestant.runner.drain()
    times = contestant.runner.step_times()
    assert len(times) == num_dropped + num_measured, (
        f"{contestant.name} reported {len(times)} steps, not {num_dropped + num_measured}"
    )
    step_ms = [1e3 * (end - start) for start, end in pairwise(stamps)]
    contestant.step_ms += step_ms[num_dropped:]
    contestant.times += times[num_dropped:]
    contestant.losses += losses[num_dropped:]


def _step(contestant: Contestant) -> torch.Tensor:
    try:
        loss, _ = contestant.runner.progress(contestant.batches)
    except StopIteration:
        raise RuntimeError(f"{contestant.name} ran out of batches before its last step") from None
    # A copy: the method may reuse the memory, and reading the value here would wait for the device.
    return loss.detach().clone()
