"""What a training launch sends back: the loss of every epoch, metrics, and how each user came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Epoch:
    """One epoch of one method."""

    number: int
    """From 1."""
    num_steps: int
    """Trained in all at its end."""
    loss: float
    """Mean over its steps and the workers."""
    train_s: float
    metrics: Mapping[str, float]
    """Empty where it was not evaluated."""
    evaluation_s: float = 0.0


@dataclass(frozen=True)
class Users:
    """The last evaluation sample by sample, in order of sample ids."""

    sample_ids: NDArray[np.int64]
    ranks: NDArray[np.int64]
    """Of the held-out item, from 1: [num]."""
    top_items: NDArray[np.int64]
    """The best items, the best first: [num, 50]."""


@dataclass(frozen=True)
class MethodTraining:
    """One method's training."""

    method: str
    note: str
    epochs: tuple[Epoch, ...]
    users: Users | None
    """On rank 0, for workloads that rank items."""


@dataclass(frozen=True)
class TrainingReport:
    """What a worker sends back to the launcher; complete on rank 0 alone."""

    rank: int
    batch_size: int
    methods: tuple[MethodTraining, ...]
