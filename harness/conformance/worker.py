"""What a worker of a conformance launch does: every check of every method, each agreed on by all workers."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from harness.conformance import promises, reading, training
from harness.conformance.collectives import check_collectives
from harness.conformance.job import (
    FAILED,
    NOT_REACHED,
    PASSED,
    SKIPPED,
    ConformanceJob,
    Examined,
    Finding,
)
from harness.conformance.subject import Skip, Subject, Violation
from harness.emulation.fabric import BACKEND, Fabric, register
from harness.process import process_group, run_recorded
from harness.setup import autocast, make_setup
from workloads.interface import Workload

Check = Callable[[Subject], str]

_CHECKS: dict[str, Check] = {
    "build": training.check_build,
    "given weights": reading.check_start,
    "progress": training.check_progress,
    "end of batches": training.check_end,
    "new iterator": training.check_restart,
    "state": reading.check_state,
    "evaluate": reading.check_evaluate,
    "rows of a table": reading.check_rows,
    "goes on": training.check_continues,
    "step times": training.check_step_times,
    "uneven ends": training.check_uneven_ends,
    "collectives": check_collectives,
    "exactness": promises.check_exactness,
    "freshness": promises.check_freshness,
}
LEFTOVERS = "leftovers"
_OF_TRAINING = ("build", "progress", "end of batches", "new iterator", "goes on", "uneven ends")
_WORST = (FAILED, PASSED, SKIPPED)


def run_conformance(job: ConformanceJob) -> tuple[Examined, ...]:
    """The function that every worker of a launch runs."""
    return run_recorded(_run, job)


def _run(job: ConformanceJob) -> tuple[Examined, ...]:
    # That a worker stops where another has no batch is what an examination is after.
    logging.getLogger("nestpipe").setLevel(logging.ERROR)
    settings = job.settings.training
    # It runs every collective on gloo, at no cost, and keeps a log.
    fabric = register() if settings.device == "cpu" and job.is_one_machine else None
    with process_group(settings, job.timeout_s, BACKEND if fabric else None) as device:
        group = dist.new_group(backend="gloo")
        assert group is not None
        workload = job.open_workload(dist.get_world_size())
        with autocast(settings, device):
            examined = tuple(_examine(job, name, workload, device, group, fabric) for name in job.methods)
        dist.barrier()
        if fabric is not None:
            fabric.close()
    return examined


def _examine(
    job: ConformanceJob,
    name: str,
    workload: Workload,
    device: torch.device,
    group: dist.ProcessGroup,
    fabric: Fabric | None,
) -> Examined:
    method = job.find_method(name)
    before = promises.Surroundings.now()
    subject = Subject(
        method=method,
        workload=workload,
        setup_for=partial(make_setup, job.settings, workload, device, 100),
        find_method=job.find_method,
        rank=dist.get_rank(),
        num_workers=dist.get_world_size(),
        group=group,
        fabric=fabric,
    )
    checks: dict[str, Check] = {**_CHECKS, LEFTOVERS: partial(promises.check_leftovers, before=before)}
    findings = tuple(_findings(subject, checks))
    gc.collect()
    return Examined(name, findings)


def _findings(subject: Subject, checks: dict[str, Check]) -> Iterator[Finding]:
    """A collective: a finding a check.

    A method that raises is asked nothing more; one that trains otherwise than it should, what it leaves.
    """
    is_broken = is_astray = False
    for name, check in checks.items():
        if is_broken or (is_astray and name != LEFTOVERS):
            yield Finding(name, NOT_REACHED, "")
            continue
        verdict, detail, raised = _ask(check, subject)
        answers = subject.gather((verdict, detail, raised))
        is_broken = any(answer[2] for answer in answers)
        rank = min(range(len(answers)), key=lambda rank: _WORST.index(answers[rank][0]))
        verdict, detail, _ = answers[rank]
        is_astray = is_astray or (verdict == FAILED and name in _OF_TRAINING)
        yield Finding(name, verdict, f"rank {rank}: {detail}" if verdict == FAILED else detail)


def _ask(check: Check, subject: Subject) -> tuple[str, str, bool]:
    """Verdict, detail, and whether the method raised what it should not."""
    try:
        return PASSED, check(subject), False
    except Violation as violation:
        return FAILED, str(violation), False
    except Skip as skip:
        return SKIPPED, str(skip), False
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return FAILED, f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})", True
