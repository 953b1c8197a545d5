"""Row update: rows, their optimizer state and their summed gradients in one pass, in place.

Every function takes `rows` [num_rows, dim], the state's tensors, one row each, and `gradients`, for all
rows or, with `positions` int64 [n], unique, for those at `positions`: [n, dim]. State and gradients are
of the rows' dtype or float32. The kernels compute in float32 (float64 for float64 rows) and round once
what they store. `gradients` may be overwritten. `bounds` checks `positions`. Formulas:
`nestpipe.optim`, whose optimizers these are. Raises TypeError, ValueError or IndexError naming the
argument.

Bytes moved, with n updated rows: those each docstring says, the least possible, and 8 n for `positions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nestpipe.kernels.checks import check_bounds, check_indices, check_rows, check_same_device
from nestpipe.kernels.dispatch import Impl, uses_triton
from nestpipe.kernels.row_update import reference


def sgd(
    rows: torch.Tensor,
    gradients: torch.Tensor,
    *,
    lr: float,
    weight_decay: float = 0.0,
    positions: torch.Tensor | None = None,
    impl: Impl = "auto",
    bounds: bool = False,
) -> None:
    """`g += weight_decay * w; w -= lr * g`. Bytes moved: 3 n dim itemsize."""
    _check("sgd", rows, gradients, {}, positions, bounds)
    if uses_triton(impl, rows.device):
        from nestpipe.kernels.row_update import triton

        triton.sgd(rows, gradients, positions, lr, weight_decay)
    else:
        _change(positions, [rows], lambda w: reference.sgd(w, gradients, lr, weight_decay))


def row_wise_adagrad(
    rows: torch.Tensor,
    total: torch.Tensor,
    gradients: torch.Tensor,
    *,
    lr: float,
    eps: float,
    weight_decay: float = 0.0,
    positions: torch.Tensor | None = None,
    impl: Impl = "auto",
    bounds: bool = False,
) -> None:
    """`g += weight_decay * w; s += mean(g * g); w -= lr * g / (sqrt(s) + eps)`; `total` s [num_rows, 1].

    Bytes moved: 3 n dim itemsize + 2 n state itemsize. What a row has beyond 2048 columns is read
    twice, the second time from the cache.
    """
    _check("row_wise_adagrad", rows, gradients, {"total": (total, 1)}, positions, bounds)
    if uses_triton(impl, rows.device):
        from nestpipe.kernels.row_update import triton

        triton.row_wise_adagrad(rows, total, gradients, positions, lr, eps, weight_decay)
        return
    _change(
        positions,
        [rows, total],
        lambda w, s: reference.row_wise_adagrad(w, s, gradients, lr, eps, weight_decay),
    )


def adagrad(
    rows: torch.Tensor,
    total: torch.Tensor,
    gradients: torch.Tensor,
    *,
    lr: float,
    eps: float,
    weight_decay: float = 0.0,
    positions: torch.Tensor | None = None,
    impl: Impl = "auto",
    bounds: bool = False,
) -> None:
    """`g += weight_decay * w; s += g * g; w -= lr * g / (sqrt(s) + eps)`; `total` s as `rows`.

    Bytes moved: 3 n dim itemsize + 2 n dim state itemsize.
    """
    _check("adagrad", rows, gradients, {"total": (total, rows.shape[-1])}, positions, bounds)
    if uses_triton(impl, rows.device):
        from nestpipe.kernels.row_update import triton

        triton.adagrad(rows, total, gradients, positions, lr, eps, weight_decay)
        return
    _change(positions, [rows, total], lambda w, s: reference.adagrad(w, s, gradients, lr, eps, weight_decay))


def adam(
    rows: torch.Tensor,
    momentum: torch.Tensor,
    variance: torch.Tensor,
    gradients: torch.Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float = 0.0,
    step: int,
    positions: torch.Tensor | None = None,
    impl: Impl = "auto",
    bounds: bool = False,
) -> None:
    """`m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g * g;
    w -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * w)`; `momentum` m and `variance` v as `rows`,
    `step`, from 1, corrects their bias. Bytes moved: 3 n dim itemsize + 4 n dim state itemsize.
    """
    dim = rows.shape[-1]
    state = {"momentum": (momentum, dim), "variance": (variance, dim)}
    _check("adam", rows, gradients, state, positions, bounds)
    if step < 1:
        raise ValueError(f"adam: step counts from 1, got {step}")
    if uses_triton(impl, rows.device):
        from nestpipe.kernels.row_update import triton

        triton.adam(rows, momentum, variance, gradients, positions, lr, betas, eps, weight_decay, step)
        return
    _change(
        positions,
        [rows, momentum, variance],
        lambda w, m, v: reference.adam(w, m, v, gradients, lr, betas, eps, weight_decay, step),
    )


def _change(positions: torch.Tensor | None, tensors: list[torch.Tensor], change: Callable[..., Any]) -> None:
    if positions is None:
        change(*tensors)
    else:
        reference.change_at(positions, tensors, change)


def _check(
    op: str,
    rows: torch.Tensor,
    gradients: torch.Tensor,
    state: dict[str, tuple[torch.Tensor, int]],
    positions: torch.Tensor | None,
    bounds: bool,
) -> None:
    """`state` has each tensor with its width."""
    check_rows(op, "rows", rows)
    num_rows, dim = rows.shape
    num = num_rows
    tensors = {"rows": rows, "gradients": gradients} | {name: tensor for name, (tensor, _) in state.items()}
    if positions is not None:
        check_indices(op, "positions", positions)
        num = positions.numel()
        tensors["positions"] = positions
    _check_companion(op, "gradients", gradients, (num, dim), rows.dtype)
    for name, (tensor, width) in state.items():
        _check_companion(op, name, tensor, (num_rows, width), rows.dtype)
    check_same_device(op, **tensors)
    if bounds and positions is not None:
        check_bounds(op, "positions", positions, num_rows)
        if positions.unique().numel() != num:
            raise ValueError(f"{op}: positions must be unique; sum the gradients of duplicates first")


def _check_companion(
    op: str, name: str, tensor: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    check_rows(op, name, tensor)
    if tensor.shape != shape:
        raise ValueError(f"{op}: {name} must be of shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype not in (dtype, torch.float32):
        raise TypeError(f"{op}: {name} must be {dtype} as the rows or torch.float32, got {tensor.dtype}")
