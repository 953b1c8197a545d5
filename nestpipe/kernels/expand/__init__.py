"""Expand: unique rows spread over the ids that asked for them."""

from __future__ import annotations

import torch

from nestpipe.kernels.checks import check_bounds, check_indices, check_rows, check_same_device
from nestpipe.kernels.dispatch import Impl, uses_triton
from nestpipe.kernels.expand import reference

_OP = "expand_rows"


def expand_rows(
    rows: torch.Tensor, inverse: torch.Tensor, *, impl: Impl = "auto", bounds: bool = False
) -> torch.Tensor:
    """`out[i] = rows[inverse[i]]`: `rows` [n, dim], `inverse` int64 [num_ids] -> [num_ids, dim].

    Differentiable once, in `rows`: the gradients of a row's occurrences are added in a fixed order, so that
    runs repeat bit by bit. `bounds` checks `inverse`.

    Bytes moved: forward 8 num_ids + 2 num_ids dim itemsize. Backward (num_ids + n) (dim itemsize + 8) beside
    the sort of `inverse` (`nestpipe.kernels.occurrences`); partial sums of rows that occur often add at most
    4 %. Raises TypeError, ValueError or IndexError naming the argument.
    """
    check_rows(_OP, "rows", rows)
    check_indices(_OP, "inverse", inverse)
    check_same_device(_OP, rows=rows, inverse=inverse)
    if bounds:
        check_bounds(_OP, "inverse", inverse, rows.shape[0])
    if uses_triton(impl, rows.device):
        from nestpipe.kernels.expand.triton import ExpandRows

        expanded: torch.Tensor = ExpandRows.apply(rows, inverse)
        return expanded
    return reference.expand_rows(rows, inverse)
