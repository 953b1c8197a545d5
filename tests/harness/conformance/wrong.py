"""Methods on the engine, each with one fault, and what an examination must say of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from baselines import registry
from baselines.engine_methods import BITWISE, REORDERED, EngineMethod, EngineRunner
from baselines.interface import Evaluated, Exactness, Method, Setup, StepTimes
from nestpipe import schedules
from nestpipe.schedule import Schedule


class ForgetsTimes(EngineRunner):
    def step_times(self) -> list[StepTimes]:
        return super().step_times()[1:]


class CountsTwice(EngineRunner):
    """Its lookup holds everything, and comm and dense besides."""

    def step_times(self) -> list[StepTimes]:
        return [replace(times, lookup_ms=times.step_ms) for times in super().step_times()]


class StopsEarly(EngineRunner):
    num_steps = 0

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        self.num_steps += 1
        if self.num_steps == 4:
            raise StopIteration
        return super().progress(batches)


class NeverStops(EngineRunner):
    last: tuple[torch.Tensor, Any]

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        with suppress(StopIteration):
            self.last = super().progress(batches)
        return self.last


class RenamesState(EngineRunner):
    def state_dict(self) -> dict[str, torch.Tensor]:
        return {f"module.{name}": value for name, value in super().state_dict().items()}


class RaisesInEvaluation(EngineRunner):
    def evaluate(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        raise TypeError("no such thing")


class EvaluatesOther(EngineRunner):
    def evaluate(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        for batch, loss, output in super().evaluate(batches):
            yield batch, loss + 0.01, output


class LosesRows(EngineRunner):
    def rows_of(self, table: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for ids, rows in super().rows_of(table):
            yield ids[1:], rows[1:]


class LeavesThread(EngineRunner):
    def __init__(self, setup: Setup, schedule: Schedule) -> None:
        super().__init__(setup, schedule)
        threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


class LeavesHook(EngineRunner):
    def __init__(self, setup: Setup, schedule: Schedule) -> None:
        super().__init__(setup, schedule)
        setup.model.register_forward_hook(lambda *_: None)


class LearnsFaster(EngineRunner):
    def __init__(self, setup: Setup, schedule: Schedule) -> None:
        def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.Adam(parameters, lr=1.01e-3)

        super().__init__(replace(setup, dense_optimizer=optimizer), schedule)


class LearnsHardlyFaster(EngineRunner):
    """By less than what float32 can tell from its rounding."""

    def __init__(self, setup: Setup, schedule: Schedule) -> None:
        def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            return torch.optim.Adam(parameters, lr=1.000001e-3)

        super().__init__(replace(setup, dense_optimizer=optimizer), schedule)


class RenamesHead(EngineRunner):
    def state_dict(self) -> dict[str, torch.Tensor]:
        return {name.replace("head.", "top."): value for name, value in super().state_dict().items()}


class TalksToItself(EngineRunner):
    """On rank 0 a collective more a step, which no other worker need take part in."""

    def __init__(self, setup: Setup, schedule: Schedule) -> None:
        super().__init__(setup, schedule)
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        self._alone = groups[dist.get_rank()]

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        if dist.get_rank() == 0:
            dist.all_gather([torch.empty(1)], torch.ones(1), group=self._alone)
        return super().progress(batches)


class HidesFreshness(EngineRunner):
    """It does not even say that it runs on the engine."""

    schedule = None  # type: ignore[assignment]

    def __init__(self, setup: Setup, schedule: Schedule) -> None:
        super().__init__(replace(setup, freshness=None), schedule)


class WrongMethod(EngineMethod):
    """The synchronous schedule, or another, under a runner with a fault."""

    def __init__(
        self,
        name: str,
        kind: Callable[[Setup, Schedule], EngineRunner],
        exactness: Exactness,
        schedule: Callable[[], Schedule] = schedules.sync,
    ) -> None:
        super().__init__(name, lambda _: schedule(), exactness)
        self._kind = kind

    def build(self, setup: Setup) -> EngineRunner:
        return self._kind(setup, self._make_schedule(setup.options))


# By name: the method, the check that must fail, and what it must say.
WRONG: dict[str, tuple[Method, str, str]] = {
    kind.__name__: (WrongMethod(kind.__name__, kind, BITWISE), check, message)
    for kind, check, message in (
        (ForgetsTimes, "step times", "3 times for 4 steps"),
        (CountsTwice, "step times", "its parts"),
        (StopsEarly, "progress", "StopIteration at step 3 of 4"),
        (NeverStops, "end of batches", "though its iterator had ended"),
        (RenamesState, "given weights", "state_dict lacks "),
        (RaisesInEvaluation, "evaluate", "TypeError: no such thing (" + __file__),
        (EvaluatesOther, "evaluate", "where the model has"),
        (LosesRows, "rows of a table", "the workers have 998, 998 of them"),
        (LeavesThread, "leftovers", "threads still alive after close: forgotten"),
        (LeavesHook, "leftovers", "1 hooks are left on the model"),
        (LearnsFaster, "exactness", "bitwise: "),
        (RenamesHead, "exactness", "parameters that only one of two compared methods has: head."),
        (TalksToItself, "collectives", "rank 1: 0 all_gather of floats in 4 steps, 4 on rank 0"),
    )
}
WRONG["stale"] = (
    WrongMethod("stale", EngineRunner, Exactness("reordered", "sync", 2e-6), schedules.uniemb),
    "freshness",
    "rows 1 steps stale were read, allowed 0",
)
WRONG["LearnsHardlyFaster"] = (
    WrongMethod("LearnsHardlyFaster", LearnsHardlyFaster, REORDERED),
    "exactness",
    " in float64, in ",
)
WRONG["loose"] = (
    WrongMethod("loose", EngineRunner, Exactness("bitwise", "sync", 1.0)),
    "exactness",
    "bitwise allows a tolerance of 0, not 1.0",
)
WRONG["uncounted"] = (
    WrongMethod("uncounted", HidesFreshness, Exactness("stale by 1", "sync", None), schedules.uniemb),
    "freshness",
    "no row was counted",
)


def find_method(name: str) -> Method:
    return WRONG[name][0] if name in WRONG else registry.get(name)
