"""Checks that the ops share: an error names the op, the argument and what was expected."""

from __future__ import annotations

import torch

ROW_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_rows(op: str, name: str, rows: torch.Tensor) -> None:
    """Rows are a contiguous matrix of floating-point numbers."""
    if rows.dim() != 2:
        raise ValueError(f"{op}: {name} must be a matrix [num_rows, dim], got shape {tuple(rows.shape)}")
    if rows.dtype not in ROW_DTYPES:
        raise TypeError(f"{op}: {name} must be of a floating-point dtype, got {rows.dtype}")
    check_contiguous(op, name, rows)


def check_indices(op: str, name: str, indices: torch.Tensor, size: int | None = None) -> None:
    """Indices are a contiguous int64 vector, of length `size` where given; values are not looked at."""
    if indices.dtype != torch.int64 or indices.dim() != 1:
        raise TypeError(
            f"{op}: {name} must be an int64 vector, got {indices.dtype} of shape {tuple(indices.shape)}"
        )
    if size is not None and indices.numel() != size:
        raise ValueError(f"{op}: {name} must have {size} elements, got {indices.numel()}")
    check_contiguous(op, name, indices)


def check_contiguous(op: str, name: str, tensor: torch.Tensor) -> None:
    """A kernel reads memory as it lies."""
    if not tensor.is_contiguous():
        raise ValueError(f"{op}: {name} must be contiguous; call .contiguous() first")


def check_same_device(op: str, **tensors: torch.Tensor) -> None:
    """Tensors that one kernel reads and writes lie on one device."""
    if len({tensor.device for tensor in tensors.values()}) > 1:
        listed = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise ValueError(f"{op}: tensors must be on one device, got {listed}")


def check_reachable(op: str, device: torch.device, **tensors: torch.Tensor) -> None:
    """A kernel works on the memory of its own `device` and on pinned host memory."""
    for name, tensor in tensors.items():
        if tensor.device != device and not tensor.is_pinned():
            raise ValueError(
                f"{op}: {name} must be on {device} or in pinned host memory, it is on {tensor.device}"
            )


def check_bounds(op: str, name: str, indices: torch.Tensor, num_rows: int) -> None:
    """Every index names a row; reads the values, so on an accelerator it waits for them."""
    if indices.numel() == 0:
        return
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= num_rows:
        worst = low if low < 0 else high
        raise IndexError(f"{op}: {name} has {worst}, which is outside 0 to {num_rows - 1}")
