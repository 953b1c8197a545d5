"""Trainings made by hand, whose statistics can be worked out on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.training.reports import Epoch, MethodTraining, TrainingReport, Users
from harness.training.rows import Launched

METRICS = ("hr@10", "hr@50", "ndcg@10", "ndcg@50")


def training(
    name: str, values: Sequence[float], ranks: Sequence[int] | None = None, first_items: Sequence[int] = ()
) -> MethodTraining:
    """A method whose metrics after epoch e are values[e - 1], each in all four; its last ranks by user."""
    epochs = tuple(
        Epoch(number, 10 * number, 9.0 - number, 1.5, dict.fromkeys(METRICS, value), 0.5)
        for number, value in enumerate(values, start=1)
    )
    users = None
    if ranks is not None:
        top = np.tile(np.arange(50), (len(ranks), 1))
        top[:, 0] = first_items or top[:, 0]
        users = Users(np.arange(len(ranks)), np.array(ranks), top)
    return MethodTraining(name, "", epochs, users)


def launched(seed: int, *methods: MethodTraining, num_workers: int = 2) -> Launched:
    return Launched(num_workers, seed, TrainingReport(0, 64, methods))


def series(values: Mapping[str, Sequence[float]]) -> list[Launched]:
    """One launch a seed; a method's value of a seed is its metric after the second of two epochs."""
    num_seeds = len(next(iter(values.values())))
    return [
        launched(seed, *(training(name, (0.1, own[seed]), ranks=(1, 20, 60)) for name, own in values.items()))
        for seed in range(num_seeds)
    ]
