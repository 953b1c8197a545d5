"""Scatter-add: rows added to those of a matrix by position."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nestpipe.kernels.checks import check_bounds, check_indices, check_rows, check_same_device
from nestpipe.kernels.dispatch import Impl, uses_triton
from nestpipe.kernels.occurrences import sort_by_row
from nestpipe.kernels.scatter_add import reference

_OP = "scatter_add_rows"


@dataclass(frozen=True)
class SortedPositions:
    """Positions [n] in the order in which the deterministic kernel adds their rows."""

    positions: torch.Tensor
    """Ascending; equal ones in order of occurrence. Of the narrowest dtype that holds them."""
    order: torch.Tensor
    """Where each stood before, int64."""


def sort_positions(positions: torch.Tensor, num_rows: int, *, impl: Impl = "auto") -> SortedPositions | None:
    """`positions` int64 [n], below `num_rows`, as `scatter_add_rows` takes them; None where it needs nothing.

    So the sort (`sort_by_row`), which may move as many bytes as the rows, can run while these are still on
    their way.
    """
    check_indices("sort_positions", "positions", positions)
    if not uses_triton(impl, positions.device):
        return None
    return SortedPositions(*sort_by_row(positions, num_rows))


def scatter_add_rows(
    out: torch.Tensor,
    positions: torch.Tensor,
    gradients: torch.Tensor,
    *,
    deterministic: bool = True,
    sorted_positions: SortedPositions | None = None,
    impl: Impl = "auto",
    bounds: bool = False,
) -> torch.Tensor:
    """`out[positions[i]] += gradients[i]`: `out` [num_rows, dim], `positions` int64 [n] with duplicates,
    `gradients` [n, dim] of the same dtype -> `out`.

    Rows of one position are added one after another in order of occurrence, which in float32 gives what
    the CPU gives, bit by bit; 16-bit rows are summed in float32 and rounded once. Not `deterministic`
    adds by atomics, without a sort, in an order that changes from run to run, and rounds 16-bit sums at
    each addition: for positions that are unique, or nearly so.

    Bytes moved, with m different positions: (8 + 2 or 4) n + (n + 2 m) dim itemsize after the sort of
    positions, which `sorted_positions` (from `sort_positions`) saves; with atomics 8 n + 3 n dim itemsize.
    The least possible are 8 n + (n + 2 m) dim itemsize. `bounds` checks `positions`. Raises TypeError,
    ValueError or IndexError naming the argument.
    """
    check_rows(_OP, "out", out)
    check_rows(_OP, "gradients", gradients)
    check_indices(_OP, "positions", positions, gradients.shape[0])
    check_same_device(_OP, out=out, positions=positions, gradients=gradients)
    if out.dtype != gradients.dtype or out.shape[1] != gradients.shape[1]:
        raise ValueError(
            f"{_OP}: gradients must be {out.dtype} with {out.shape[1]} columns as out, got "
            f"{gradients.dtype} with {gradients.shape[1]}"
        )
    if bounds:
        check_bounds(_OP, "positions", positions, out.shape[0])
    if not uses_triton(impl, out.device):
        return reference.scatter_add_rows(out, positions, gradients, deterministic)
    from nestpipe.kernels.scatter_add import triton

    if not deterministic:
        return triton.add_by_atomics(out, positions, gradients)
    found = sorted_positions or SortedPositions(*sort_by_row(positions, out.shape[0]))
    check_indices(_OP, "sorted_positions", found.order, positions.numel())
    return triton.add_in_order(out, found.positions, found.order, gradients)
