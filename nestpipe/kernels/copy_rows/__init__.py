"""Copy of rows by position: from one buffer into another, or into a table."""

from __future__ import annotations

import torch

from nestpipe.kernels.checks import (
    check_bounds,
    check_indices,
    check_reachable,
    check_rows,
    check_same_device,
)
from nestpipe.kernels.copy_rows import reference
from nestpipe.kernels.dispatch import Impl, uses_triton

_OP = "copy_rows"


def copy_rows(
    source: torch.Tensor,
    source_positions: torch.Tensor | None,
    target: torch.Tensor,
    target_positions: torch.Tensor,
    *,
    impl: Impl = "auto",
    bounds: bool = False,
) -> None:
    """`target[target_positions[i]] = source[source_positions[i]]`, in place.

    `source` [num_source_rows, dim], `target` [num_target_rows, dim], two int64 positions [n] each;
    `target_positions` are unique, and without `source_positions` all rows of `source` are written in
    order. With positions on an accelerator, `source` and `target` may lie in pinned host memory: the
    kernel then works on it in place (zero-copy). Bytes moved: 16 n + 2 n dim itemsize (8 n for one list
    of positions), the least possible. `bounds` checks the positions. Raises TypeError, ValueError or
    IndexError naming the argument.
    """
    check_rows(_OP, "source", source)
    check_rows(_OP, "target", target)
    if source.dtype != target.dtype or source.shape[1] != target.shape[1]:
        raise ValueError(
            f"{_OP}: rows of source and target must be alike, got {source.dtype} [{source.shape[1]}] and "
            f"{target.dtype} [{target.shape[1]}]"
        )
    device = target_positions.device
    if source_positions is None:
        check_indices(_OP, "target_positions", target_positions, source.shape[0])
    else:
        check_indices(_OP, "source_positions", source_positions)
        check_indices(_OP, "target_positions", target_positions, source_positions.numel())
        check_same_device(_OP, source_positions=source_positions, target_positions=target_positions)
    if bounds:
        _check_bounds(source, source_positions, target, target_positions)
    if uses_triton(impl, device):
        check_reachable(_OP, device, source=source, target=target)
        from nestpipe.kernels.copy_rows import triton

        triton.copy_rows(source, source_positions, target, target_positions, target_positions.numel())
    else:
        reference.copy_rows(source, source_positions, target, target_positions)


def _check_bounds(
    source: torch.Tensor,
    source_positions: torch.Tensor | None,
    target: torch.Tensor,
    target_positions: torch.Tensor,
) -> None:
    if source_positions is not None:
        check_bounds(_OP, "source_positions", source_positions, source.shape[0])
    check_bounds(_OP, "target_positions", target_positions, target.shape[0])
    if target_positions.unique().numel() != target_positions.numel():
        raise ValueError(f"{_OP}: target_positions must be unique; which of two rows stays is undefined")
