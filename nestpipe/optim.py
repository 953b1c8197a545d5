"""Sparse optimizers: one update a touched row and step, applied once a window.

Each is a frozen dataclass of hyper-parameters; `kernels.row_update` has the arithmetic of the update on
a dense block of rows, and the state of a row travels with the row. The formulas are those of FBGEMM's
fused optimizers, so that a run can be compared with TorchRec number by number. Weight decay acts on
touched rows, at each update: as L2 regularisation, `g += weight_decay * w` before all else (FBGEMM's mode
L2, which it has for RowWiseAdagrad alone), but decoupled from the gradient in Adam, as FBGEMM's ADAM has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from nestpipe.kernels import row_update

State = dict[str, torch.Tensor]


def state_dtype(rows: torch.dtype) -> torch.dtype:
    """Of the state of rows in `rows`: float32 at least, as FBGEMM's, since sums would stop growing below."""
    return torch.promote_types(rows, torch.float32)


class SparseOptimizer(Protocol):
    """Updates rows of an embedding table from their summed gradients."""

    @property
    def lr(self) -> float:
        """Learning rate."""
        ...

    def state_widths(self, dim: int) -> dict[str, int]:
        """Name and number of elements a row of each state tensor, for rows of `dim` elements."""
        ...

    def update(
        self, rows: torch.Tensor, state: State, gradients: torch.Tensor, step: int, lr_factor: float = 1.0
    ) -> None:
        """Update `rows` [n, dim] and `state` [n, width] in place; `step` counts from 1.

        The learning rate of this step is `lr * lr_factor`. `gradients` [n, dim] may be overwritten.
        """
        ...


def _check(name: str, value: float, low: float, *, strict: bool = False) -> None:
    if value < low or (strict and value == low):
        relation = ">" if strict else ">="
        raise ValueError(f"{name} must be {relation} {low}, got {value}")


@dataclass(frozen=True)
class SGD:
    """`w -= lr * g`."""

    lr: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("lr", self.lr, 0.0)
        _check("weight_decay", self.weight_decay, 0.0)

    def state_widths(self, dim: int) -> dict[str, int]:
        return {}

    def update(
        self, rows: torch.Tensor, state: State, gradients: torch.Tensor, step: int, lr_factor: float = 1.0
    ) -> None:
        row_update.sgd(rows, gradients, lr=self.lr * lr_factor, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class RowWiseAdagrad:
    """`s += mean(g * g); w -= lr * g / (sqrt(s) + eps)`, one element of state a row (FBGEMM's
    EXACT_ROWWISE_ADAGRAD)."""

    lr: float
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("lr", self.lr, 0.0)
        _check("eps", self.eps, 0.0)
        _check("weight_decay", self.weight_decay, 0.0)

    def state_widths(self, dim: int) -> dict[str, int]:
        return {"sum": 1}

    def update(
        self, rows: torch.Tensor, state: State, gradients: torch.Tensor, step: int, lr_factor: float = 1.0
    ) -> None:
        row_update.row_wise_adagrad(
            rows,
            state["sum"],
            gradients,
            lr=self.lr * lr_factor,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True)
class Adagrad:
    """`s += g * g; w -= lr * g / (sqrt(s) + eps)`, elementwise (FBGEMM's EXACT_ADAGRAD)."""

    lr: float
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("lr", self.lr, 0.0)
        _check("eps", self.eps, 0.0)
        _check("weight_decay", self.weight_decay, 0.0)

    def state_widths(self, dim: int) -> dict[str, int]:
        return {"sum": dim}

    def update(
        self, rows: torch.Tensor, state: State, gradients: torch.Tensor, step: int, lr_factor: float = 1.0
    ) -> None:
        row_update.adagrad(
            rows,
            state["sum"],
            gradients,
            lr=self.lr * lr_factor,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True)
class Adam:
    """`m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g * g;
    w -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w)` on touched rows, the bias correction
    counting the steps of the run (FBGEMM's ADAM)."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("lr", self.lr, 0.0)
        _check("eps", self.eps, 0.0)
        _check("weight_decay", self.weight_decay, 0.0)
        for name, beta in zip(("betas[0]", "betas[1]"), self.betas, strict=True):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} must lie in [0, 1), got {beta}")

    def state_widths(self, dim: int) -> dict[str, int]:
        return {"momentum": dim, "variance": dim}

    def update(
        self, rows: torch.Tensor, state: State, gradients: torch.Tensor, step: int, lr_factor: float = 1.0
    ) -> None:
        row_update.adam(
            rows,
            state["momentum"],
            state["variance"],
            gradients,
            lr=self.lr * lr_factor,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            step=step,
        )
