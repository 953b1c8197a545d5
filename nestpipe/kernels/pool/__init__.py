"""Pool: the sum or mean of a matrix's rows, bag by bag, weighted or not."""

from __future__ import annotations

from typing import Literal

import torch

from nestpipe.kernels.checks import (
    check_bounds,
    check_contiguous,
    check_indices,
    check_rows,
    check_same_device,
)
from nestpipe.kernels.dispatch import Impl, uses_triton
from nestpipe.kernels.pool import reference

Mode = Literal["sum", "mean"]
_OP = "pool_rows"


def pool_rows(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    offsets: torch.Tensor,
    mode: Mode = "sum",
    weights: torch.Tensor | None = None,
    *,
    impl: Impl = "auto",
    bounds: bool = False,
) -> torch.Tensor:
    """`out[s] = sum(weights[j] * rows[ids[j]])` over the ids j of bag s.

    Those are `offsets[s]` to `offsets[s + 1] - 1`. `rows` [n, dim]; `ids` int64 [num_ids], or None where the
    bags take the rows one after the other; `offsets` int64 [S + 1], from 0 to num_ids; `weights` [num_ids]
    of the rows' dtype, or None for 1 -> [S, dim]. `mean` divides by the number of ids, also a weighted sum,
    as FBGEMM does. An empty bag gives zeros. `bounds` checks the values of `ids` and `offsets`.
    Differentiable once, in `rows` and `weights`; gradients are added in a fixed order, so that runs repeat
    bit by bit.

    Bytes moved: forward num_ids (dim itemsize + 8) + S (dim itemsize + 8), the least possible. Backward
    reads the gradient of a bag once an id, mostly from the cache, and writes n dim itemsize, with 24 to 32
    an id for indices beside the sort (`nestpipe.kernels.occurrences`, none without `ids`); partial sums
    of rows that occur often add at most 4 %. That of `weights` reads num_ids dim itemsize. Raises
    TypeError, ValueError or IndexError naming the argument.
    """
    if mode not in ("sum", "mean"):
        raise ValueError(f'{_OP}: mode must be "sum" or "mean", got {mode!r}')
    _check(rows, ids, offsets, weights)
    if bounds:
        _check_values(rows, ids, offsets)
    if uses_triton(impl, rows.device):
        from nestpipe.kernels.pool.function import PoolRows

        pooled: torch.Tensor = PoolRows.apply(rows, ids, offsets, mode == "mean", weights)
        return pooled
    return reference.pool_rows(rows, ids, offsets, mode == "mean", weights)


def _check(
    rows: torch.Tensor, ids: torch.Tensor | None, offsets: torch.Tensor, weights: torch.Tensor | None
) -> None:
    check_rows(_OP, "rows", rows)
    check_indices(_OP, "offsets", offsets)
    if offsets.numel() == 0:
        raise ValueError(f"{_OP}: offsets must have a bag's first id and, at the end, num_ids; got none")
    others = {"offsets": offsets}
    if ids is not None:
        check_indices(_OP, "ids", ids)
        others["ids"] = ids
    if weights is not None:
        num_ids = rows.shape[0] if ids is None else ids.numel()
        if weights.dtype != rows.dtype or weights.shape != (num_ids,):
            raise TypeError(
                f"{_OP}: weights must be {rows.dtype} [{num_ids}], got {weights.dtype} {list(weights.shape)}"
            )
        check_contiguous(_OP, "weights", weights)
        others["weights"] = weights
    check_same_device(_OP, rows=rows, **others)


def _check_values(rows: torch.Tensor, ids: torch.Tensor | None, offsets: torch.Tensor) -> None:
    num_ids = rows.shape[0]
    if ids is not None:
        check_bounds(_OP, "ids", ids, rows.shape[0])
        num_ids = ids.numel()
    if int(offsets[0]) != 0 or int(offsets[-1]) != num_ids or bool((offsets.diff() < 0).any()):
        raise ValueError(f"{_OP}: offsets must rise from 0 to {num_ids}, the number of ids")
