"""What the kernels share: blocks of rows, their factors, and how large a block is."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

ELEMENTS_A_PROGRAM = 512
MAX_ROWS = 32
NUM_WARPS = 1
"""A program with a few rows of uneven length; none waits for another one's warp."""
BY_ID = ("order", "positions", "weights", "bag_offsets", "offsets", "bags", "ids", "row_of")
"""What has an entry an id or a bag: a micro-batch's part of it may begin anywhere."""

# One kernel for all sizes: none is compiled while others train.
jit = triton.jit(do_not_specialize=["num"], do_not_specialize_on_alignment=BY_ID)


@triton.jit
def load_rows(source, position, inside, column, DIM: tl.constexpr, FLOAT: tl.constexpr):
    """The rows at `position`, zeros where not `inside` and beyond `DIM`."""
    mask = inside[:, None] & (column < DIM)[None, :]
    return tl.load(source + position[:, None] * DIM + column[None, :], mask=mask, other=0.0).to(FLOAT)


@triton.jit
def divided(x, y, FLOAT: tl.constexpr):
    """`x` over `y` of the same shape, rounded as on a CPU."""
    return x / y if tl.float64 == FLOAT else tl.div_rn(x, y)


@triton.jit
def share_of(weights, bag_offsets, index, bag, inside, FLOAT: tl.constexpr):
    """`weights[index]` over the number of ids of `bag`; a weight, or the number, that is None counts as 1."""
    share = tl.full(index.shape, 1.0, FLOAT)
    if weights is not None:
        share = tl.load(weights + index, mask=inside, other=0.0).to(FLOAT)
    if bag_offsets is not None:
        first = tl.load(bag_offsets + bag, mask=inside, other=0)
        num = (tl.load(bag_offsets + bag + 1, mask=inside, other=1) - first).to(FLOAT)
        share = divided(share, num, FLOAT)
    return share


def launch_options(rows: torch.Tensor, num: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """Programs for `num` results as wide as `rows`, and what a kernel is compiled for."""
    sizes = sizes_of(rows.shape[1])
    options = {
        **sizes,
        "FLOAT": tl.float64 if rows.dtype is torch.float64 else tl.float32,
        "num_warps": NUM_WARPS,
    }
    return (triton.cdiv(num, sizes["ROWS"]), triton.cdiv(sizes["DIM"], sizes["COLUMNS"])), options


def sizes_of(dim: int) -> dict[str, int]:
    """The block of a program: columns of a row that it holds at a time, and rows."""
    columns = min(triton.next_power_of_2(dim), ELEMENTS_A_PROGRAM)
    return {"DIM": dim, "COLUMNS": columns, "ROWS": min(ELEMENTS_A_PROGRAM // columns, MAX_ROWS)}
