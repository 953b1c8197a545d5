"""One method's training on this worker: epochs of steps, each measured, some followed by an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from baselines.interface import Runner
from harness.training.job import TrainingJob
from harness.training.reports import Epoch, MethodTraining, Users
from workloads.interface import Evaluable, EvaluationResult


@dataclass(frozen=True)
class Course:
    """What all methods of a launch have in common on this worker."""

    job: TrainingJob
    workload: Evaluable
    group: dist.ProcessGroup
    """Of all workers, for the harness's own collectives and the evaluation's."""
    rank: int
    num_workers: int

    @property
    def num_steps_an_epoch(self) -> int:
        """Steps of one epoch."""
        return self.workload.num_steps_an_epoch(self.num_workers)


def train(name: str, runner: Runner, course: Course, after_epoch: Callable[[int], None]) -> MethodTraining:
    """A collective: all epochs of one method; `after_epoch` is told the steps of each as it ends."""
    batches = course.workload.training_batches(rank=course.rank, num_workers=course.num_workers)
    epochs: list[Epoch] = []
    users: Users | None = None
    for number in range(1, course.job.num_epochs + 1):
        loss, train_s = _train_epoch(name, runner, batches, course)
        metrics: dict[str, float] = {}
        evaluation_s = 0.0
        if course.job.is_evaluated(number):
            began = perf_counter()
            result = evaluate(runner, course)
            evaluation_s = perf_counter() - began
            metrics, users = result.metrics, _users(result)
        num_steps = number * course.num_steps_an_epoch
        epochs.append(Epoch(number, num_steps, loss, train_s, metrics, evaluation_s))
        after_epoch(course.num_steps_an_epoch)
    return MethodTraining(name, runner.note, tuple(epochs), users)


def evaluate(runner: Runner, course: Course) -> EvaluationResult:
    """A collective: what the method's model, as trained so far, is worth on what was held out."""
    held_out = course.workload.evaluation_batches(rank=course.rank, num_workers=course.num_workers)
    return course.workload.evaluate(runner.evaluate(held_out), runner.rows_of, course.group)


def _train_epoch(name: str, runner: Runner, batches: Iterator[Any], course: Course) -> tuple[float, float]:
    """Mean loss over steps and workers, and the seconds it took."""
    began = perf_counter()
    losses = []
    for _ in range(course.num_steps_an_epoch):
        try:
            loss, _ = runner.progress(batches)
        except StopIteration:
            raise RuntimeError(f"{name} ran out of batches before its last step") from None
        # A copy: the method may reuse the memory, and reading the value here would wait for the device.
        losses.append(loss.detach().clone())
    runner.drain()
    seconds = perf_counter() - began
    # Not needed here, but kept by the runner until asked.
    runner.step_times()
    total = torch.stack(losses).double().mean().cpu()
    dist.all_reduce(total, group=course.group)
    return total.item() / course.num_workers, seconds


def _users(result: EvaluationResult) -> Users | None:
    if result.sample_ids is None or result.ranks is None or result.top_items is None:
        return None
    return Users(result.sample_ids.numpy(), result.ranks.numpy(), result.top_items.numpy())
