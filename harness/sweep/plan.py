"""A sweep as data: its steps, and the cells that they come to; imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

Settings = tuple[tuple[str, str], ...]
"""Keys and values as `nestpipe run --set key=value` takes them, sorted by key."""


@dataclass(frozen=True)
class Variant:
    """What a step trains, and on what."""

    method: str
    workload: str
    cluster: str
    settings: Settings = ()

    def differences(self, base: Variant) -> list[str]:
        """What is different from `base`, each in a few words."""
        names = ("method", "workload", "cluster")
        changed = [getattr(self, name) for name in names if getattr(self, name) != getattr(base, name)]
        own, before = dict(self.settings), dict(base.settings)
        changed += [f"{key}={value}" for key, value in own.items() if before.get(key) != value]
        return changed + [f"without {key}" for key in before if key not in own]


@dataclass(frozen=True)
class Step:
    """One rung of a ladder, or one point of a grid."""

    name: str
    variant: Variant
    base: str | None
    """The step that its gain is over; None for the first."""
    change: str
    """What it does differently from `base`."""


@dataclass(frozen=True)
class Cell:
    """One launch: a step's variant on so many workers in one round.

    Its fields are all that decides what is measured, so that equal cells need one measurement.
    """

    method: str
    workload: str
    cluster: str
    settings: Settings
    workers: int
    num_steps: int
    num_warmup_steps: int
    seed: int
    check: bool
    round: int
    """From 0."""

    @property
    def identity(self) -> str:
        """A hash of the fields."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sweep:
    """Steps, and how each is measured."""

    name: str
    steps: tuple[Step, ...]
    workers: tuple[int, ...] = (1,)
    num_steps: int = 30
    num_warmup_steps: int = 5
    num_rounds: int = 3
    seed: int = 0
    check: bool = False
    """Compare each step's parameters with those of the method it promises to equal."""
    timeout_s: float = 120.0

    def cell(self, step: Step, workers: int, round_: int) -> Cell:
        """The cell of a step in one round."""
        return Cell(
            **vars(step.variant),
            workers=workers,
            num_steps=self.num_steps,
            num_warmup_steps=self.num_warmup_steps,
            seed=self.seed,
            check=self.check,
            round=round_,
        )

    def cells(self) -> Iterator[tuple[Step, Cell]]:
        """Every cell in the order of measuring: round by round, so that drift hits all steps alike.

        The order rotates from round to round, so that no step always follows the same other one.
        """
        for round_ in range(self.num_rounds):
            first = round_ % len(self.steps)
            for workers in self.workers:
                for step in self.steps[first:] + self.steps[:first]:
                    yield step, self.cell(step, workers, round_)
