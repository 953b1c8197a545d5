"""What one worker of a training launch does: each method in turn, with the memory of one at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from baselines.interface import Method, Runner, Setup
from harness.process import process_group, run_recorded
from harness.progress import StepProgress
from harness.setup import autocast, make_setup
from harness.training.job import TrainingJob
from harness.training.loop import Course, train
from harness.training.reports import MethodTraining, TrainingReport


def run_training(job: TrainingJob) -> TrainingReport:
    """The function that every worker of a launch runs."""
    return run_recorded(_run, job)


def _run(job: TrainingJob) -> TrainingReport:
    training = job.settings.training
    with process_group(training, job.timeout_s) as device:
        with autocast(training, device):
            report = _train_all(job, device)
        dist.barrier()
    return report


def _train_all(job: TrainingJob, device: torch.device) -> TrainingReport:
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    workload = job.open_workload(num_workers)
    group = dist.new_group(backend="gloo")
    assert group is not None
    course = Course(job, workload, group, rank, num_workers)
    methods = job.found_methods()
    num_steps = job.num_epochs * course.num_steps_an_epoch
    label = f"seed {job.seed}, {num_workers} worker{'s' if num_workers > 1 else ''}"
    setup_for = partial(make_setup, job.settings, workload, device, num_steps)
    if len(methods) > 1:
        # What one of them refuses is told before another has trained for hours.
        for method in methods.values():
            _build(method, setup_for()).close()
            gc.collect()
    trained: list[MethodTraining] = []
    with StepProgress(len(methods) * num_steps, label, enabled=rank == 0) as progress:
        for method in methods.values():
            trained.append(_train_one(method, setup_for(), course, progress.advance))
            gc.collect()
    return TrainingReport(rank, workload.batch_size, tuple(trained))


def _train_one(
    method: Method, setup: Setup, course: Course, after_epoch: Callable[[int], None]
) -> MethodTraining:
    # A function of its own, so that nothing names the runner and its tables when the next one is built.
    runner = _build(method, setup)
    training = train(method.name, runner, course, after_epoch)
    runner.close()
    return training


def _build(method: Method, setup: Setup) -> Runner:
    runner = method.build(setup)
    require_evaluation(method, runner)
    return runner


def require_evaluation(method: Method, runner: Runner) -> None:
    """ValueError for a method that only trains."""
    lacking = [n for n in ("evaluate", "rows_of") if getattr(type(runner), n) is getattr(Runner, n)]
    if lacking:
        raise ValueError(
            f"method {method.name!r} cannot be evaluated: its runner has no {' and no '.join(lacking)}; "
            "leave it out, or use `nestpipe run`"
        )
