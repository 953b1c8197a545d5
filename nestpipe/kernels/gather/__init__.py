"""Gather: rows of a matrix by position."""

from __future__ import annotations

import torch

from nestpipe.kernels.checks import (
    check_bounds,
    check_indices,
    check_reachable,
    check_rows,
    check_same_device,
)
from nestpipe.kernels.dispatch import Impl, uses_triton
from nestpipe.kernels.gather import reference

_OP = "gather_rows"
_STAGED = "gather_rows_staged"


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
    _check_block(_OP, "out", out, table, rows)
    if out.device != rows.device:
        raise ValueError(f"{_OP}: out must be on {rows.device} as rows are, it is on {out.device}")
    if bounds:
        check_bounds(_OP, "rows", rows, table.shape[0])
    if uses_triton(impl, rows.device):
        check_reachable(_OP, rows.device, table=table)
        from nestpipe.kernels.gather import triton

        return triton.gather_rows(table, rows, out)
    return reference.gather_rows(table, rows, out)


def gather_rows_staged(
    table: torch.Tensor,
    rows: torch.Tensor,
    staging: torch.Tensor,
    out: torch.Tensor,
    *,
    bounds: bool = False,
) -> torch.Tensor:
    """`gather_rows` on the host, then one copy to the device of `out` [n, dim], which nobody waits for.

    For rows so short that reading each across the bus is slower than the host's gather, and where no
    kernel can read host memory. `table` [num_rows, dim] and `rows` int64 [n] lie in host memory, and so
    does `staging`, at least [n, dim], pinned where `out` is on an accelerator: it stays untouched until
    the current stream has done the copy. Bytes moved: 8 n + 4 n dim itemsize, of which n dim itemsize
    cross the bus. Raises as `gather_rows`.
    """
    check_rows(_STAGED, "table", table)
    check_indices(_STAGED, "rows", rows)
    check_rows(_STAGED, "staging", staging)
    check_same_device(_STAGED, table=table, rows=rows, staging=staging)
    block = staging[: rows.numel()]
    _check_block(_STAGED, "staging", block, table, rows)
    _check_block(_STAGED, "out", out, table, rows)
    if out.device != staging.device and not staging.is_pinned():
        raise ValueError(f"{_STAGED}: staging must be in pinned memory for a copy to {out.device}")
    if bounds:
        check_bounds(_STAGED, "rows", rows, table.shape[0])
    return out.copy_(reference.gather_rows(table, rows, block), non_blocking=True)


def _check_block(op: str, name: str, block: torch.Tensor, table: torch.Tensor, rows: torch.Tensor) -> None:
    check_rows(op, name, block)
    if block.shape != (rows.numel(), table.shape[1]) or block.dtype != table.dtype:
        raise ValueError(
            f"{op}: {name} must be {table.dtype} [{rows.numel()}, {table.shape[1]}], got {block.dtype} "
            f"{list(block.shape)}"
        )
