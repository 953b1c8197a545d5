"""`nestpipe train`: one launch a worker count and seed, kept as it ends; curves and tables at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch

from harness.launch import LaunchError, launch_function
from harness.machine import num_cores
from harness.results import Run, start_run
from harness.setup import lr_factor
from harness.training.job import TrainingJob
from harness.training.plots import save_curves
from harness.training.rows import Launched, save
from harness.training.statistics import differences, levels
from harness.training.tables import print_differences, print_levels
from harness.training.worker import run_training


@dataclass
class Outcome:
    """What a series of launches brought, complete or not."""

    run: Run
    launches: list[Launched] = field(default_factory=list)
    saved: dict[Path, None] = field(default_factory=dict)
    """Files and folders that were written, in order."""
    error: LaunchError | None = None


def check(job: TrainingJob, worker_counts: Sequence[int], folder: Path) -> int:
    """Fail for what the user can mend before anything is launched; steps of a whole training."""
    if job.settings.training.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda needs an accelerator and torch's CUDA build: use device=cpu")
    job.found_methods()
    # Workers then find a data set that is converted already.
    steps = [job.num_epochs * job.open_workload(count).num_steps_an_epoch(count) for count in worker_counts]
    lr_factor(job.settings.training, min(steps))
    folder.mkdir(parents=True, exist_ok=True)
    return max(steps)


def train_all(job: TrainingJob, worker_counts: Sequence[int], seeds: Sequence[int], folder: Path) -> Outcome:
    """Launch after launch, seed by seed; a launch that fails ends the series, those before it are kept."""
    steps = check(job, worker_counts, folder)
    run = start_run(job.workload, job.settings, seed=seeds[0], steps=steps, evidence="measured")
    outcome = Outcome(run)
    for num_workers in worker_counts:
        for seed in seeds:
            try:
                reports = launch_function(run_training, replace(job, seed=seed), num_workers)
            except LaunchError as error:
                outcome.error = error
                return outcome
            launched = Launched(num_workers, seed, reports[0])
            outcome.launches.append(launched)
            outcome.saved |= dict.fromkeys(save(folder, run, launched))
    return outcome


def train(
    job: TrainingJob,
    worker_counts: Sequence[int],
    seeds: Sequence[int],
    folder: Path,
    *,
    as_json: bool = False,
) -> None:
    """Train, save and print; a ClickException at the end where a worker died."""
    outcome = train_all(job, worker_counts, seeds, folder)
    if outcome.launches:
        reached, compared = levels(outcome.launches), differences(outcome.launches)
        title = f"{title_of(job, outcome)} ({outcome.run.evidence})"
        drawn = save_curves(outcome.launches, title, folder, f"train-{outcome.run.run_id}")
        print_levels(reached, title)
        if compared:
            print_differences(compared)
        for line in remarks(outcome, worker_counts, seeds):
            click.echo(line)
        click.echo(f"drawn: {', '.join(map(str, drawn))}")
    if as_json:
        click.echo(json.dumps(as_document(job, outcome), allow_nan=False))
    raise_failure(outcome)


def title_of(job: TrainingJob, outcome: Outcome) -> str:
    """What was trained for how long, with how many seeds."""
    seeds = dict.fromkeys(launched.seed for launched in outcome.launches)
    model = job.settings.workload.get("model")
    return (
        f"{job.workload}{f', {model}' if model else ''}, "
        f"{job.num_epochs} epoch{'s' if job.num_epochs > 1 else ''}, "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    )


def remarks(outcome: Outcome, worker_counts: Sequence[int], seeds: Sequence[int]) -> Iterator[str]:
    """What a reader must know, and where the rest lies."""
    missing = len(worker_counts) * len(seeds) - len(outcome.launches)
    if missing:
        yield f"incomplete: {missing} of {len(worker_counts) * len(seeds)} launches are missing"
    if len(seeds) == 1:
        yield "one seed: no standard error; several (--seeds 0,1,2) tell a difference from chance"
    for num_workers in worker_counts:
        if num_workers > num_cores():
            yield f"{num_workers} workers shared {num_cores()} cores"
    notes = dict.fromkeys(
        f"{method.method}: {method.note}"
        for launched in outcome.launches
        for method in launched.report.methods
        if method.note
    )
    yield from notes
    folders = dict.fromkeys(path.parent if path.suffix == ".npz" else path for path in outcome.saved)
    yield f"saved: {', '.join(map(str, folders))}"


def as_document(job: TrainingJob, outcome: Outcome) -> dict[str, Any]:
    """The whole comparison for machines."""
    return {
        **{key: value for key, value in vars(outcome.run).items() if key != "seed"},
        "epochs": job.num_epochs,
        "results": [level.as_json() for level in levels(outcome.launches)],
        "differences": [difference.as_json() for difference in differences(outcome.launches)],
    }


def raise_failure(outcome: Outcome) -> None:
    """The LaunchError of a launch that failed, if one did."""
    if outcome.error is not None:
        raise outcome.error
