"""Pooling as Triton kernels, and how they are specialised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import triton.language as tl

from nestpipe.kernels.aot import Variant
from nestpipe.kernels.pool.triton.blocks import BY_ID, NUM_WARPS, sizes_of
from nestpipe.kernels.pool.triton.by_id import dot_rows, spread_bags
from nestpipe.kernels.pool.triton.sums import BLOCK, add_blocks, add_segments

_TYPES = {
    **dict.fromkeys(("order", "positions", "bag_offsets", "offsets", "bags", "ids"), "*i64"),
    "row_of": "*i32",
    "partial": "*fp32",
    "num": "i64",
}


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: all that a weighted mean of rows of 128 elements needs."""
    for dtype in ("fp32", "bf16"):
        others = ("order", "bag_offsets", "partial")
        yield variant("pool", "forward", add_segments, dtype, absent=others, MEAN=True)
        yield variant("pool", "rows", add_segments, dtype, MEAN=False)
        yield variant("pool", "rows, blocks", add_blocks, dtype)
        yield variant("pool", "rows in order", spread_bags, dtype)
        yield variant("pool", "weights", dot_rows, dtype)


def variant(
    op: str,
    name: str,
    kernel: Any,
    dtype: str,
    dim: int = 128,
    absent: Sequence[str] = (),
    **constants: Any,
) -> Variant:
    """A kernel for rows of `dtype` and length `dim`, without the arguments in `absent`."""
    sizes = {**sizes_of(dim), "BLOCK": BLOCK, "FLOAT": tl.float32}
    sizes = {name: size for name, size in sizes.items() if name in kernel.arg_names}
    given = [name for name in kernel.arg_names if name.islower() and name not in absent]
    return Variant(
        op=op,
        name=f"{name} {dtype} {dim}",
        kernel=kernel,
        signature={name: _TYPES.get(name, f"*{dtype}") for name in given},
        constexprs=sizes | constants | dict.fromkeys(absent),
        aligned=tuple(name for name in given if name not in (*BY_ID, "num")),
        num_warps=NUM_WARPS,
        # A weight's gradient is one number.
        moves_rows=kernel is not dot_rows,
    )
