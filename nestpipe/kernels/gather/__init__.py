"""Gather: rows of a matrix by position."""

from __future__ import annotations

import torch

from nestpipe.kernels.checks import check_bounds, check_indices, check_rows
from nestpipe.kernels.dispatch import Impl, uses_triton
from nestpipe.kernels.gather import reference

_OP = "gather_rows"


def gather_rows(
    table: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    impl: Impl = "auto",
    bounds: bool = False,
) -> torch.Tensor:
    """`out[i] = table[rows[i]]`: `table` [num_rows, dim], `rows` int64 [n] -> [n, dim].

    With `rows` on an accelerator, `table` may lie in pinned host memory: the kernel then reads it in
    place (zero-copy). Bytes moved: 8 n + 2 n dim itemsize, the least possible. `bounds` checks `rows`.
    Raises TypeError, ValueError or IndexError naming the argument.
    """
    check_rows(_OP, "table", table)
    check_indices(_OP, "rows", rows)
    if out is None:
        out = torch.empty(rows.numel(), table.shape[1], dtype=table.dtype, device=rows.device)
    check_rows(_OP, "out", out)
    if out.shape != (rows.numel(), table.shape[1]) or out.dtype != table.dtype or out.device != rows.device:
        raise ValueError(
            f"{_OP}: out must be {table.dtype} [{rows.numel()}, {table.shape[1]}] on {rows.device}, got "
            f"{out.dtype} {list(out.shape)} on {out.device}"
        )
    if bounds:
        check_bounds(_OP, "rows", rows, table.shape[0])
    if uses_triton(impl, rows.device):
        if table.device != rows.device and not table.is_pinned():
            raise ValueError(f"{_OP}: table must be on {rows.device} or in pinned host memory")
        from nestpipe.kernels.gather import triton

        return triton.gather_rows(table, rows, out)
    return reference.gather_rows(table, rows, out)
