"""Copy of rows as a Triton kernel: a program moves a few whole rows, 16 bytes a thread and access.

Gather is the same kernel, its rows written in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from nestpipe.kernels.aot import ROW_DTYPES, Variant
from nestpipe.kernels.dispatch import launch

ELEMENTS_A_PROGRAM = 2048
MAX_COLUMNS = 1024
"""Of a row that a program moves."""
MAX_ROWS = 256
"""Narrow rows, such as one element of state, are spread over programs all the same."""


@triton.jit(
    do_not_specialize=["num"], do_not_specialize_on_alignment=["source_positions", "target_positions"]
)
def _copy_rows(
    source,
    source_positions,
    target,
    target_positions,
    num,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    # 64-bit arithmetic: a table may hold more than 2**31 elements.
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = index < num
    origin = index if source_positions is None else tl.load(source_positions + index, mask=inside, other=0)
    place = index if target_positions is None else tl.load(target_positions + index, mask=inside, other=0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < DIM)[None, :]
    values = tl.load(source + origin[:, None] * DIM + column[None, :], mask=mask)
    tl.store(target + place[:, None] * DIM + column[None, :], values, mask=mask)


def copy_rows(
    source: torch.Tensor,
    source_positions: torch.Tensor | None,
    target: torch.Tensor,
    target_positions: torch.Tensor | None,
    num: int,
) -> None:
    """`num` rows of `source` [num_source_rows, dim] to `target` [num_target_rows, dim].

    Without positions [num] the first `num` rows there, in order.
    """
    dim = source.shape[1]
    if num and dim:
        constants = constants_of(dim)
        grid = (triton.cdiv(num, constants["ROWS"]), triton.cdiv(dim, constants["COLUMNS"]))
        launch(_copy_rows, grid, source, source_positions, target, target_positions, num, **constants)


def constants_of(dim: int) -> dict[str, int]:
    """What a kernel over rows is compiled for: a dim that it knows tells it what is aligned."""
    columns = min(triton.next_power_of_2(dim), MAX_COLUMNS)
    return {"DIM": dim, "COLUMNS": columns, "ROWS": min(max(1, ELEMENTS_A_PROGRAM // columns), MAX_ROWS)}


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: rows of 128 elements in each dtype, and awkward ones."""
    for dtype in ROW_DTYPES:
        yield variant_of("copy_rows", dtype, 128)
    yield variant_of("copy_rows", "fp32", 60)
    yield variant_of("copy_rows", "fp32", 128, without="source_positions")


def variant_of(op: str, dtype: str, dim: int, without: str | None = None) -> Variant:
    """The kernel for rows of `dim` elements, optionally without one of the positions."""
    signature = {
        "source": f"*{dtype}",
        "source_positions": "*i64",
        "target": f"*{dtype}",
        "target_positions": "*i64",
        "num": "i64",
    }
    constants: dict[str, Any] = constants_of(dim)
    if without is not None:
        del signature[without]
        constants[without] = None
    return Variant(
        op=op,
        name=f"{dtype} {dim}" + ("" if without is None else f" without {without}"),
        kernel=_copy_rows,
        signature=signature,
        constexprs=constants,
        aligned=("source", "target"),
    )
