"""The method under examination on this worker, and what its training has brought so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from baselines.interface import Method, Runner, Setup, StepTimes
from harness.emulation.fabric import Fabric
from nestpipe.freshness import FreshnessMeter
from workloads.interface import Workload

NUM_FIRST_STEPS = 4
NUM_SECOND_STEPS = 6
"""Of the second iterator, besides what the method needs before its steps are comparable."""
NUM_UNEVEN_STEPS = 3
NUM_HELD_OUT = 2


Collective = tuple[str, str]
"""Kind of a collective, and whether it moves floats or integers."""


class Violation(Exception):  # noqa: N818 - not an error of the program, but of what it examines
    """The method breaks a rule; the message says which value was found."""


class Skip(Exception):  # noqa: N818
    """The method does not offer what would be checked; the message says so."""


@dataclass(frozen=True)
class Phase:
    """A stretch of training: its steps, their times, the wall time from first call to last return, and what
    this worker has issued in it."""

    losses: list[float]
    outputs: list[Any]
    times: list[StepTimes]
    wall_ms: float
    num_collectives: Counter[Collective]


@dataclass
class Subject:
    """A method with its workload; `runner` is there once it was built."""

    method: Method
    workload: Workload
    setup_for: Callable[[str], Setup]
    """From a dtype's name to a setup with the initial weights in it."""
    find_method: Callable[[str], Method]
    rank: int
    num_workers: int
    group: dist.ProcessGroup
    """Of all workers, for the examination alone."""
    fabric: Fabric | None
    """The backend of all other groups, which counts their collectives; None: of another backend."""
    runner: Runner = field(init=False)
    setup: Setup = field(init=False)
    first_iterator: Iterator[Any] = field(init=False)
    second_iterator: Iterator[Any] = field(init=False)
    meter: FreshnessMeter = field(default_factory=FreshnessMeter)
    phases: list[Phase] = field(default_factory=list)
    num_trained: list[int] = field(default_factory=list)
    """Steps trained from each iterator, in order."""

    def __post_init__(self) -> None:
        self.initial = self.workload.model(torch.device("cpu"))
        self.num_second = NUM_SECOND_STEPS + self.method.extra_warmup_steps
        # The last ones are those that only some workers have when ends are uneven.
        self.num_batches = NUM_FIRST_STEPS + self.num_second + NUM_UNEVEN_STEPS + self.num_workers
        stream = self.workload.batches(rank=self.rank, num_workers=self.num_workers)
        self._batches = list(islice(stream, self.num_batches + NUM_HELD_OUT))

    def build(self) -> None:
        """A collective: the runner, from weights of its own."""
        setup = self.setup_for("float32")
        # An engine on a device would refuse a meter.
        self.setup = replace(setup, freshness=self.meter) if setup.device.type == "cpu" else setup
        self.runner = self.method.build(self.setup)

    def batches(self, start: int, count: int) -> list[Any]:
        """This worker's batches from number `start` on, as nobody has touched them."""
        return [batch.to(torch.device("cpu")) for batch in self._batches[start : start + count]]

    def held_out(self) -> list[Any]:
        """Batches that are not trained on; rank 0 has one more than the others."""
        return self.batches(self.num_batches, NUM_HELD_OUT - min(self.rank, 1))

    def train(self, batches: Iterator[Any], num_steps: int) -> Phase:
        """A collective: `num_steps` steps, kept in `phases`; Violation where they end before."""
        losses, outputs = [], []
        self.settle()
        began = perf_counter()
        for step in range(num_steps):
            try:
                loss, output = self.runner.progress(batches)
            except StopIteration:
                raise Violation(f"StopIteration at step {step} of {num_steps}, batches left") from None
            losses.append(loss.detach().clone())
            outputs.append(output)
        wall_ms = 1e3 * (perf_counter() - began)
        self.runner.drain()
        times, values = self.runner.step_times(), [float(loss) for loss in losses]
        phase = Phase(values, outputs, times, wall_ms, self.settle())
        self.phases.append(phase)
        return phase

    def settle(self) -> Counter[Collective]:
        """The collectives since the last call, all of them through, and no thread of the fabric left."""
        if self.fabric is None:
            return Counter()
        self.fabric.close()
        log = self.fabric.take_log()
        return Counter((record.kind, "floats" if record.is_float else "integers") for record in log)

    def has_stopped(self, batches: Iterator[Any]) -> bool:
        """A collective: whether `progress` raises StopIteration."""
        try:
            self.runner.progress(batches)
        except StopIteration:
            return True
        return False

    def plain_model(self, state: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
        """The unsharded model in evaluation mode, with the initial weights or those of a state."""
        model = deepcopy(self.initial)
        if state is not None:
            model.load_state_dict(state, strict=False)
        return model.eval()

    def retrain(
        self, method: Method, dtype: str, change: Callable[[nn.Module], None] | None = None
    ) -> dict[str, torch.Tensor]:
        """A collective: the state of another runner after as many steps on the same batches.

        They come from one iterator; `change` may move the initial weights.
        """
        setup = self.setup_for(dtype)
        if change is not None:
            change(setup.model)
        runner = method.build(setup)
        num_steps = sum(self.num_trained)
        batches = iter(self.batches(0, num_steps))
        for _ in range(num_steps):
            runner.progress(batches)
        runner.drain()
        state = runner.state_dict()
        runner.close()
        return state

    def gather(self, value: Any) -> list[Any]:
        """A collective: every worker's value, in rank order."""
        values: list[Any] = [None] * self.num_workers
        dist.all_gather_object(values, value, group=self.group)
        return values
