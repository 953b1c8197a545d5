"""Learning rates that change over a run: functions from the step to a factor on the base rate.

NestPipe takes one for each optimizer (`dense_lr_factor`, `sparse_lr_factor`) and asks it at the update of
every step. Steps count from 0 over the whole run, those of a loaded state included, so a resumed run goes
on where it was. A factor must be a function of the step alone: every worker asks its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

LrFactor = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """`factor` after a linear warm-up of `warmup_steps`.

    Step t of a warm-up has the share (t + 1) / warmup_steps: the first step learns too, the last one has
    the full rate. Raises ValueError for a negative number, as all here do.
    """

    factor: float = 1.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _check("factor", self.factor)
        _check("warmup_steps", self.warmup_steps)

    def __call__(self, step: int) -> float:
        return self.factor * _warmup(step, self.warmup_steps)


@dataclass(frozen=True)
class WarmupLinear:
    """Linear warm-up to 1, then linearly down to `final`, which holds from step `total_steps` on."""

    warmup_steps: int
    total_steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_decay(self.warmup_steps, self.total_steps, self.final)

    def __call__(self, step: int) -> float:
        done = _decayed(step, self.warmup_steps, self.total_steps)
        return _warmup(step, self.warmup_steps) * (1.0 + (self.final - 1.0) * done)


@dataclass(frozen=True)
class WarmupCosine:
    """Linear warm-up to 1, then half a cosine down to `final`, which holds from step `total_steps` on
    (Loshchilov and Hutter, "SGDR", 2017, without restarts)."""

    warmup_steps: int
    total_steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _check_decay(self.warmup_steps, self.total_steps, self.final)

    def __call__(self, step: int) -> float:
        done = _decayed(step, self.warmup_steps, self.total_steps)
        share = 0.5 * (1.0 + math.cos(math.pi * done))
        return _warmup(step, self.warmup_steps) * (self.final + (1.0 - self.final) * share)


@dataclass(frozen=True)
class StepDecay:
    """`gamma` once more every `every_steps` steps, after a linear warm-up."""

    every_steps: int
    gamma: float
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {self.every_steps}")
        _check("gamma", self.gamma)
        _check("warmup_steps", self.warmup_steps)

    def __call__(self, step: int) -> float:
        return _warmup(step, self.warmup_steps) * self.gamma ** (step // self.every_steps)


def factor_at(lr_factor: LrFactor | None, step: int) -> float:
    """The factor of a step, 1 without a function; ValueError for one that no learning rate can have."""
    if lr_factor is None:
        return 1.0
    factor = float(lr_factor(step))
    if not (math.isfinite(factor) and factor >= 0.0):
        raise ValueError(
            f"a learning rate's factor must be finite and >= 0, but {lr_factor} is {factor} at step {step}"
        )
    return factor


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def _decayed(step: int, warmup_steps: int, total_steps: int) -> float:
    """How much of the decay is done, 0 to 1."""
    return min(1.0, max(0, step - warmup_steps) / (total_steps - warmup_steps))


def _check(name: str, value: float) -> None:
    if not value >= 0.0:
        raise ValueError(f"{name} must be >= 0, got {value}")


def _check_decay(warmup_steps: int, total_steps: int, final: float) -> None:
    _check("warmup_steps", warmup_steps)
    _check("final", final)
    if total_steps <= warmup_steps:
        raise ValueError(f"total_steps must be more than warmup_steps={warmup_steps}, got {total_steps}")
