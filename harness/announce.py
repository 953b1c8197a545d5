"""What a command says before it starts: the estimate, and under `--dry-run` what it would run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from harness.place import find_place

if TYPE_CHECKING:
    from harness.job import Job
    from harness.regress.experiment import Experiment
    from harness.regress.gate import Conditions
    from harness.reproduce.items import Item
    from harness.training.job import TrainingJob

Command = Callable[..., Any]


def dry_run_option(command: Command) -> Command:
    """The option `--dry-run` of a command that may take long."""
    return click.option(
        "--dry-run", is_flag=True, help="Print what would run and an estimate of time and memory, then end."
    )(command)


def announce_run(job: Job, worker_counts: Sequence[int], *, dry_run: bool) -> None:
    """Of `nestpipe run`."""
    from harness.estimate import Estimator
    from harness.job import plan_rounds

    if dry_run:
        built = job.built_methods()
        plan = plan_rounds(job.num_steps, job.num_warmup_steps)
        compared = [name for name in built if name not in job.methods]
        click.echo(
            f"would run: {', '.join(job.methods)} on {job.workload}, cluster {job.clusters[0].name}, "
            f"{_workers(worker_counts)}, {plan.num_steps} steps each, of which {job.num_steps} are measured"
        )
        if compared:
            click.echo(f"and for the check: {', '.join(compared)}")
    if not is_one_of_several():
        click.echo(Estimator().run(job, worker_counts))


def announce_training(
    jobs: Sequence[TrainingJob], worker_counts: Sequence[int], num_seeds: int, *, dry_run: bool
) -> None:
    """Of `nestpipe train` and `nestpipe reproduce fig6`."""
    from harness.estimate import NOTHING, Estimator

    if dry_run:
        for job in jobs:
            click.echo(
                f"would train: {', '.join(job.methods)} on {job.workload} in {job.settings.training.dtype}, "
                f"{_counted(job.num_epochs, 'epoch')}, {_workers(worker_counts)}, "
                f"{_counted(num_seeds, 'seed')}"
            )
    if not is_one_of_several():
        estimator = Estimator()
        click.echo(sum((estimator.training(job, worker_counts, num_seeds) for job in jobs), NOTHING))


def announce_reproduction(
    items: Sequence[Item], evidence: str, num_workers: int, steps: int, *, dry_run: bool
) -> None:
    """Of `nestpipe reproduce` and `nestpipe ablate`; a simulation takes seconds and needs no estimate."""
    num_runs = len({run for item in items for run in item.runs})
    if dry_run:
        how = f"emulate on {num_workers} processes" if evidence == "emulated" else "simulate"
        click.echo(f"would {how}: {', '.join(item.name for item in items)}, {num_runs} runs of a method")
    if evidence == "emulated":
        from harness.estimate import Estimator
        from harness.reproduce.rehearsal import estimate_reproduction

        click.echo(estimate_reproduction(items, num_workers, steps, Estimator()))


def announce_gate(
    experiment: Experiment, conditions: Conditions, num_launches: int, *, dry_run: bool
) -> None:
    """Of `nestpipe regress`, which times methods in `num_launches` launches at most."""
    from harness.estimate import Estimator
    from harness.regress.counters import counting_job
    from harness.regress.times import timing_job

    counting, timing = experiment.counting, experiment.timing
    if dry_run:
        click.echo(
            f"would count: {', '.join(counting.methods)} on {counting.workload}, "
            f"{_workers([counting.num_workers])}, {_counted(counting.num_steps, 'step')} each"
        )
        if num_launches:
            click.echo(
                f"would time: {', '.join(timing.methods)} against {timing.base} on {timing.workload}, "
                f"cluster {timing.cluster}, {_workers([timing.num_workers])}, at most "
                f"{_counted(num_launches, 'launch', 'launches')}"
            )
    estimator = Estimator()
    run = counting_job(counting, conditions.cache_dir, conditions.timeout_s, conditions.find_method)
    expected = estimator.run(run, [counting.num_workers])
    if num_launches:
        one = timing_job(timing, conditions.cache_dir, conditions.timeout_s, conditions.find_method)
        rounds = replace(one, num_steps=timing.num_rounds * timing.steps_a_round)
        expected = sum([estimator.run(rounds, [timing.num_workers])] * num_launches, expected)
    click.echo(expected, err=not dry_run)


def is_one_of_several() -> bool:
    """Whether torchrun or Slurm has started this process among others, of which each would say the same."""
    return find_place(os.environ) is not None


def _workers(counts: Sequence[int]) -> str:
    return f"{', '.join(map(str, counts))} worker{'s' if max(counts) > 1 else ''}"


def _counted(number: int, noun: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"
