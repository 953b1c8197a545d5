"""From launches to what they say: means over seeds, and differences paired by seed and by user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.summary import finite
from harness.training.reports import MethodTraining, Users
from harness.training.rows import Launched

HIT_RANKS = (10, 50)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    values: tuple[float, ...]
    """One a seed."""

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.values))

    @property
    def standard_error(self) -> float | None:
        """Sample standard deviation / sqrt(number of seeds); None for a single seed."""
        if len(self.values) < 2:
            return None
        return float(np.std(self.values, ddof=1) / np.sqrt(len(self.values)))

    def as_json(self) -> dict[str, Any]:
        """For machines; null where a value is not finite or cannot be had."""
        error = self.standard_error
        return {
            "mean": finite(self.mean),
            "standard_error": None if error is None else finite(error),
            "values": [finite(value) for value in self.values],
        }


@dataclass(frozen=True)
class Level:
    """Where one method on so many workers got."""

    method: str
    num_workers: int
    epoch: int
    seeds: tuple[int, ...]
    loss: Estimate
    metrics: dict[str, Estimate]
    train_s: Estimate
    note: str

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "method": self.method,
            "workers": self.num_workers,
            "epoch": self.epoch,
            "seeds": list(self.seeds),
            "loss": self.loss.as_json(),
            "metrics": {name: value.as_json() for name, value in self.metrics.items()},
            "train_s": self.train_s.as_json(),
        }


@dataclass(frozen=True)
class Difference:
    """One method against another on so many workers: metrics paired by seed, users one by one."""

    method: str
    base: str
    num_workers: int
    metrics: dict[str, Estimate]
    hits: dict[int, Estimate]
    """Users a seed whose hit among the first K differs, by K; empty where nothing was ranked."""
    top_items: Estimate | None
    """Users a seed whose list of best items differs in any place."""
    num_users: int

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "method": self.method,
            "base": self.base,
            "workers": self.num_workers,
            "metrics": {name: value.as_json() for name, value in self.metrics.items()},
            "users_whose_hit_differs": {str(rank): value.as_json() for rank, value in self.hits.items()},
            "users_whose_top_items_differ": None if self.top_items is None else self.top_items.as_json(),
            "users": self.num_users,
        }


def levels(launches: Sequence[Launched]) -> list[Level]:
    """The last evaluation of each method, by workers and then as the methods were given."""
    return [
        _level(name, num_workers, _of(launches, num_workers, name))
        for num_workers, names in _tried(launches)
        for name in names
    ]


def differences(launches: Sequence[Launched], base: str | None = None) -> list[Difference]:
    """Every other method against `base` (default: the first) at each number of workers."""
    found: list[Difference] = []
    for num_workers, names in _tried(launches):
        against = base or names[0]
        reference = _of(launches, num_workers, against)
        found += [
            _difference(name, against, num_workers, launches, reference) for name in names if name != against
        ]
    return found


def _tried(launches: Sequence[Launched]) -> list[tuple[int, list[str]]]:
    counts = dict.fromkeys(launched.num_workers for launched in launches)
    first = {count: next(item for item in launches if item.num_workers == count) for count in counts}
    return [(count, [m.method for m in item.report.methods]) for count, item in first.items()]


def _of(launches: Sequence[Launched], num_workers: int, name: str) -> dict[int, MethodTraining]:
    """A method's trainings by seed."""
    return {
        launched.seed: next(m for m in launched.report.methods if m.method == name)
        for launched in launches
        if launched.num_workers == num_workers
    }


def _level(name: str, num_workers: int, trainings: dict[int, MethodTraining]) -> Level:
    last = [training.epochs[-1] for training in trainings.values()]
    return Level(
        method=name,
        num_workers=num_workers,
        epoch=last[0].number,
        seeds=tuple(trainings),
        loss=Estimate(tuple(epoch.loss for epoch in last)),
        metrics={key: Estimate(tuple(epoch.metrics[key] for epoch in last)) for key in last[0].metrics},
        train_s=Estimate(tuple(sum(e.train_s for e in t.epochs) for t in trainings.values())),
        note=next(iter(trainings.values())).note,
    )


def _difference(
    name: str,
    base: str,
    num_workers: int,
    launches: Sequence[Launched],
    reference: dict[int, MethodTraining],
) -> Difference:
    pairs = [(own, reference[seed]) for seed, own in _of(launches, num_workers, name).items()]
    last = [(own.epochs[-1].metrics, other.epochs[-1].metrics) for own, other in pairs]
    users = [_paired(own, other) for own, other in pairs if own.users is not None]
    return Difference(
        method=name,
        base=base,
        num_workers=num_workers,
        metrics={key: Estimate(tuple(own[key] - other[key] for own, other in last)) for key in last[0][0]},
        hits={
            rank: Estimate(tuple(_num_hits_differing(own, other, rank) for own, other in users))
            for rank in HIT_RANKS
            if users
        },
        top_items=Estimate(tuple(_num_lists_differing(*pair) for pair in users)) if users else None,
        num_users=len(users[0][0].ranks) if users else 0,
    )


def _paired(own: MethodTraining, other: MethodTraining) -> tuple[Users, Users]:
    assert own.users is not None
    assert other.users is not None
    assert np.array_equal(own.users.sample_ids, other.users.sample_ids), "evaluated on different samples"
    return own.users, other.users


def _num_hits_differing(own: Users, other: Users, rank: int) -> float:
    return float(np.count_nonzero((own.ranks <= rank) != (other.ranks <= rank)))


def _num_lists_differing(own: Users, other: Users) -> float:
    return float(np.count_nonzero((own.top_items != other.top_items).any(axis=1)))
