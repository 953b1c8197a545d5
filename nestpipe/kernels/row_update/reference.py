"""Row updates in plain torch, in place; `gradients` may be overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def sgd(rows: torch.Tensor, gradients: torch.Tensor, lr: float, weight_decay: float) -> None:
    """`rows` and `gradients` [n, dim]."""
    _add_decay(gradients, rows, weight_decay)
    rows.add_(gradients, alpha=-lr)


def row_wise_adagrad(
    rows: torch.Tensor,
    total: torch.Tensor,
    gradients: torch.Tensor,
    lr: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`rows` and `gradients` [n, dim], `total` [n, 1]."""
    _add_decay(gradients, rows, weight_decay)
    squares = torch.einsum("nd,nd->n", gradients, gradients).unsqueeze(1)
    total.add_(squares, alpha=1.0 / rows.shape[1])
    rows.addcdiv_(gradients, total.sqrt().add_(eps), value=-lr)


def adagrad(
    rows: torch.Tensor,
    total: torch.Tensor,
    gradients: torch.Tensor,
    lr: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`rows`, `total` and `gradients` [n, dim]."""
    _add_decay(gradients, rows, weight_decay)
    total.addcmul_(gradients, gradients)
    rows.addcdiv_(gradients, total.sqrt().add_(eps), value=-lr)


def adam(
    rows: torch.Tensor,
    momentum: torch.Tensor,
    variance: torch.Tensor,
    gradients: torch.Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    """`rows`, `momentum`, `variance` and `gradients` [n, dim]."""
    first, second = betas
    momentum.mul_(first).add_(gradients, alpha=1.0 - first)
    variance.mul_(second).addcmul_(gradients, gradients, value=1.0 - second)
    denominator = (variance / (1.0 - second**step)).sqrt_().add_(eps)
    if weight_decay:
        rows.mul_(1.0 - lr * weight_decay)
    rows.addcdiv_(momentum, denominator, value=-lr / (1.0 - first**step))


def change_at(positions: torch.Tensor, tensors: Sequence[torch.Tensor], change: Callable[..., None]) -> None:
    """Let `change` work on what `tensors` hold at `positions`, unique, and put the outcome back there."""
    blocks = [tensor.index_select(0, positions) for tensor in tensors]
    change(*blocks)
    for tensor, block in zip(tensors, blocks, strict=True):
        tensor.index_copy_(0, positions, block)


def _add_decay(gradients: torch.Tensor, rows: torch.Tensor, weight_decay: float) -> None:
    if weight_decay:
        gradients.add_(rows, alpha=weight_decay)
