"""Gather as a Triton kernel: a program moves a few whole rows, 16 bytes a thread and access."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from nestpipe.kernels.aot import ROW_DTYPES, Variant

ROWS_A_PROGRAM = 16


@triton.jit
def _gather(table, rows, out, num, dim, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    # 64-bit arithmetic: a table may hold more than 2**31 elements.
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.load(rows + index, mask=index < num, other=0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (index < num)[:, None] & (column < dim)[None, :]
    values = tl.load(table + row[:, None] * dim + column[None, :], mask=mask)
    tl.store(out + index[:, None] * dim + column[None, :], values, mask=mask)


def gather_rows(table: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`table` [num_rows, dim], `rows` [n] -> `out` [n, dim]."""
    num, dim = out.shape
    if num and dim:
        columns = min(triton.next_power_of_2(dim), 1024)
        grid = (triton.cdiv(num, ROWS_A_PROGRAM), triton.cdiv(dim, columns))
        _gather[grid](table, rows, out, num, dim, COLUMNS=columns, ROWS=ROWS_A_PROGRAM)
    return out


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: rows of 128 elements in each dtype."""
    for dtype in ROW_DTYPES:
        yield Variant(
            op="gather",
            name=dtype,
            kernel=_gather,
            signature={"table": f"*{dtype}", "rows": "*i64", "out": f"*{dtype}", "num": "i64", "dim": "i64"},
            constexprs={"COLUMNS": 128, "ROWS": ROWS_A_PROGRAM},
            aligned=("table", "rows", "out", "dim"),
        )
