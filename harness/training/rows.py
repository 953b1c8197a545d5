"""What a training leaves on disk: a long-form row a value, and an .npz file of users a method and launch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from harness.results import Run, append
from harness.summary import finite
from harness.training.reports import Epoch, MethodTraining, TrainingReport, Users

ROWS_FILE = "train.jsonl"


@dataclass(frozen=True)
class TrainingRow(Run):
    """One value of one epoch."""

    method: str
    workers: int
    batch_size: int
    epoch: int
    step: int
    """Trained in all at the end of the epoch."""
    loss: float | None
    """Of training, a mean over the epoch and the workers; None where it is not finite."""
    metric: str
    value: float | None
    unit: str


@dataclass(frozen=True)
class Launched:
    """One launch: all methods with one seed on so many workers."""

    num_workers: int
    seed: int
    report: TrainingReport
    """Rank 0's."""


def rows(run: Run, launched: Launched) -> Iterator[TrainingRow]:
    """The rows of a launch: an epoch's loss and seconds, and the metrics where it was evaluated."""
    for method in launched.report.methods:
        own = replace(run, seed=launched.seed, steps=method.epochs[-1].num_steps)
        for epoch in method.epochs:
            for metric, value, unit in _values(epoch):
                yield TrainingRow(
                    **vars(own),
                    method=method.method,
                    workers=launched.num_workers,
                    batch_size=launched.report.batch_size,
                    epoch=epoch.number,
                    step=epoch.num_steps,
                    loss=finite(epoch.loss),
                    metric=metric,
                    value=finite(value),
                    unit=unit,
                )


def _values(epoch: Epoch) -> Iterator[tuple[str, float, str]]:
    yield "loss", epoch.loss, ""
    yield "train_s", epoch.train_s, "s"
    if epoch.metrics:
        yield "evaluation_s", epoch.evaluation_s, "s"
    for name, value in epoch.metrics.items():
        yield name, value, ""


def save(folder: Path, run: Run, launched: Launched) -> list[Path]:
    """Write a launch's users below `users-<run id>/`, then append its rows to `train.jsonl`."""
    paths = [
        path
        for method in launched.report.methods
        if (path := _save_users(folder / f"users-{run.run_id}", launched, method)) is not None
    ]
    append(folder / ROWS_FILE, (asdict(row) for row in rows(run, launched)))
    return [folder / ROWS_FILE, *paths]


def _save_users(folder: Path, launched: Launched, method: MethodTraining) -> Path | None:
    if method.users is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{method.method}-{launched.num_workers}-workers-seed-{launched.seed}.npz"
    users = method.users
    # Written under another name first: what bears the final name is whole.
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
        try:
            np.savez_compressed(
                file, sample_ids=users.sample_ids, ranks=users.ranks, top_items=users.top_items
            )
        except BaseException:
            Path(file.name).unlink()
            raise
    Path(file.name).replace(path)
    return path


def load_users(path: Path) -> Users:
    """What `save` wrote of one method and launch."""
    with np.load(path) as arrays:
        return Users(arrays["sample_ids"], arrays["ranks"], arrays["top_items"])
