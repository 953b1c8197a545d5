"""Gradient clipping by global norm, over a whole window's averaged gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

# What torch.nn.utils.clip_grad_norm_ adds to the norm before it divides.
_EPS = 1e-6


@dataclass(frozen=True)
class GradientClipping:
    """Scale gradients down where their common L2 norm exceeds `max_norm`.

    They are the gradients that the optimizers see: of the whole window, dense ones averaged over the
    workers, those of rows summed over duplicates and divided by the workers that share the tables; before
    weight decay. `scope` says which count and are scaled: "dense" alone, which needs no communication, or
    "all", which ends every step with the all-reduce of one number. With replicas, each a group with
    gradients of its own for the same rows, the rows' part of the squared norm is the mean over the groups.
    Where rows may be stale, a step's gradients are still scaled by that step's own norm.

    Raises ValueError for a `max_norm` that is not positive and for an unknown scope.
    """

    max_norm: float
    scope: Literal["dense", "all"] = "dense"

    def __post_init__(self) -> None:
        if not self.max_norm > 0.0:
            raise ValueError(f"max_norm must be > 0, got {self.max_norm}")
        if self.scope not in ("dense", "all"):
            raise ValueError(f'scope must be "dense" or "all", got {self.scope!r}')

    def factor(self, norm: torch.Tensor) -> torch.Tensor:
        """What gradients of this norm [] are multiplied by, at most 1 (as torch.nn.utils.clip_grad_norm_).

        A tensor, which no host has to read.
        """
        return (self.max_norm / (norm + _EPS)).clamp(max=1.0)


def scale(gradients: torch.Tensor, factor: torch.Tensor) -> None:
    """Multiply `gradients` by `factor` [] in place, which is not rounded to 16 bits before they are."""
    gradients.mul_(factor.to(torch.promote_types(gradients.dtype, torch.float32)).view(1))
