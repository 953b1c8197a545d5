"""Checks of training: the contract of `progress`, the steps' times, uneven ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from baselines.interface import Runner, StepTimes
from harness.conformance.subject import NUM_FIRST_STEPS, NUM_UNEVEN_STEPS, Phase, Skip, Subject, Violation

LOSS_TOLERANCE = 1e-4
_RULE_MS = 1e-3
# A pipeline may begin a step before the call and end it after the return; neither is half a step.
_LEAST_SHARE = 0.5
_MOST_SHARE = 1.02
_SLACK_MS = 5.0


def check_build(subject: Subject) -> str:
    """`build` gives a Runner."""
    subject.build()
    if not isinstance(subject.runner, Runner):
        raise Violation(f"build gave {type(subject.runner).__name__}, which is no baselines.interface.Runner")
    return subject.runner.note or type(subject.runner).__name__


def check_progress(subject: Subject) -> str:
    """Each step returns (loss, output) of this worker's next batch; the first loss is the model's own."""
    batches = subject.batches(0, NUM_FIRST_STEPS)
    phase = subject.train(_to_the_end(subject, batches), NUM_FIRST_STEPS)
    _check_losses(phase)
    for batch, output in zip(batches, phase.outputs, strict=True):
        _check_output(output, len(batch.sample_ids) if hasattr(batch, "sample_ids") else None)
    with torch.no_grad():
        expected, _ = subject.plain_model().train()(subject.batches(0, 1)[0])
    if not math.isclose(phase.losses[0], float(expected), rel_tol=LOSS_TOLERANCE, abs_tol=1e-6):
        raise Violation(f"the first loss is {phase.losses[0]:.7g}, the model's own {float(expected):.7g}")
    return f"{NUM_FIRST_STEPS} steps; first loss {phase.losses[0]:.5f}"


def check_end(subject: Subject) -> str:
    """StopIteration on every worker after the last batch, and again when asked again."""
    ended = subject.first_iterator
    answers = [subject.has_stopped(ended), subject.has_stopped(ended)]
    if not all(answers):
        raise Violation("progress returned a step though its iterator had ended")
    if (rest := sum(1 for _ in ended)) != 0:
        raise Violation(f"{rest} batches were left in the iterator")
    subject.num_trained.append(NUM_FIRST_STEPS)
    return f"StopIteration after {NUM_FIRST_STEPS} steps, twice"


def check_restart(subject: Subject) -> str:
    """A new iterator is a new epoch: training goes on with it."""
    subject.second_iterator = iter(subject.batches(NUM_FIRST_STEPS, subject.num_second))
    phase = subject.train(subject.second_iterator, subject.num_second // 2)
    _check_losses(phase)
    return f"{subject.num_second // 2} steps with a new iterator"


def check_continues(subject: Subject) -> str:
    """What was read in between has taken no batch and changed no step: the same iterator lasts to its end."""
    phase = subject.train(subject.second_iterator, subject.num_second - subject.num_second // 2)
    _check_losses(phase)
    if not subject.has_stopped(subject.second_iterator):
        raise Violation("progress returned a step though its iterator had ended")
    subject.num_trained.append(subject.num_second)
    return f"{len(phase.losses)} more steps, then StopIteration"


def check_step_times(subject: Subject) -> str:
    """One entry a step, then forgotten; no part negative, all parts within the step, all steps in the wall
    time."""
    for phase in subject.phases:
        if len(phase.times) != len(phase.losses):
            raise Violation(f"{len(phase.times)} times for {len(phase.losses)} steps")
        for number, times in enumerate(phase.times):
            _check_parts(times, number)
        total_ms = sum(times.step_ms for times in phase.times)
        least_ms, most_ms = _LEAST_SHARE * phase.wall_ms - _SLACK_MS, _MOST_SHARE * phase.wall_ms + _SLACK_MS
        if not least_ms <= total_ms <= most_ms:
            raise Violation(
                f"{len(phase.times)} steps add up to {total_ms:.2f} ms, but took {phase.wall_ms:.2f} ms"
            )
    if again := subject.runner.step_times():
        raise Violation(f"step_times gave {len(again)} steps a second time")
    every = [times for phase in subject.phases for times in phase.times]
    share = sum(times.other_ms for times in every) / sum(times.step_ms for times in every)
    return f"{len(every)} steps; {share:.0%} of their time in no part"


def check_uneven_ends(subject: Subject) -> str:
    """Workers with different numbers of batches stop at the same step, with StopIteration."""
    if not subject.method.supports_uneven_ends:
        raise Skip("workers must be given equal numbers of batches (supports_uneven_ends is False)")
    if subject.num_workers == 1:
        raise Skip("needs several workers")
    start = NUM_FIRST_STEPS + subject.num_second
    batches = iter(subject.batches(start, NUM_UNEVEN_STEPS + subject.rank))
    subject.train(batches, NUM_UNEVEN_STEPS)
    if not subject.has_stopped(batches):
        raise Violation(f"a step after the {NUM_UNEVEN_STEPS} that every worker has batches for")
    subject.num_trained.append(NUM_UNEVEN_STEPS)
    return f"all stop after {NUM_UNEVEN_STEPS} steps; the last worker has {subject.num_workers - 1} more"


def _to_the_end(subject: Subject, batches: list[Any]) -> Iterator[Any]:
    subject.first_iterator = iter([batch.to(torch.device("cpu")) for batch in batches])
    return subject.first_iterator


def _check_losses(phase: Phase) -> None:
    if not all(map(math.isfinite, phase.losses)):
        raise Violation(f"losses {phase.losses}")


def _check_output(output: Any, num_samples: int | None) -> None:
    if not isinstance(output, torch.Tensor):
        raise Violation(f"the output is no tensor, as the model's is, but {type(output).__name__}")
    if num_samples is not None and output.shape[0] != num_samples:
        raise Violation(f"an output of {output.shape[0]} samples for a batch of {num_samples}")


def _check_parts(times: StepTimes, number: int) -> None:
    parts = {"lookup": times.lookup_ms, "comm": times.comm_ms, "dense": times.dense_ms}
    for name, value in parts.items():
        if not value >= -_RULE_MS:
            raise Violation(f"step {number}: {name} is {value} ms")
    if sum(parts.values()) > times.step_ms + _RULE_MS + 1e-3 * times.step_ms:
        raise Violation(f"step {number} took {times.step_ms:.3f} ms, its parts {sum(parts.values()):.3f} ms")
