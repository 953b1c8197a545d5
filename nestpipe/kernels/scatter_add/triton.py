"""Scatter-add as Triton kernels: in order of occurrence after a sort, or by atomics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from nestpipe.kernels.aot import ROW_DTYPES, Variant
from nestpipe.kernels.copy_rows.triton import constants_of
from nestpipe.kernels.dispatch import launch


@triton.jit(do_not_specialize=["num"], do_not_specialize_on_alignment=["positions", "order"])
def _add_in_order(
    out,
    positions,
    order,
    gradients,
    num,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    FLOAT: tl.constexpr,
):
    # 64-bit arithmetic: a matrix may hold more than 2**31 elements.
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = index < num
    position = tl.load(positions + index, mask=inside, other=-1).to(tl.int64)
    before = tl.load(positions + index - 1, mask=inside & (index > 0), other=-1)
    # Who stands at the first of equal positions adds them all, also those beyond this program's.
    active = inside & (position != before)
    mask = active[:, None] & (column < DIM)[None, :]
    sums = out + position[:, None] * DIM + column[None, :]
    total = tl.load(sums, mask=mask, other=0.0).to(FLOAT)
    while tl.max(active.to(tl.int32), axis=0) > 0:
        origin = tl.load(order + index, mask=active, other=0)
        addend = active[:, None] & (column < DIM)[None, :]
        total += tl.load(gradients + origin[:, None] * DIM + column[None, :], mask=addend, other=0.0).to(
            FLOAT
        )
        index += 1
        active = active & (index < num)
        active = active & (tl.load(positions + index, mask=active, other=-1) == position)
    tl.store(sums, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num"], do_not_specialize_on_alignment=["positions"])
def _add_by_atomics(
    out, positions, gradients, num, DIM: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = index < num
    position = tl.load(positions + index, mask=inside, other=0)
    mask = inside[:, None] & (column < DIM)[None, :]
    values = tl.load(gradients + index[:, None] * DIM + column[None, :], mask=mask)
    tl.atomic_add(out + position[:, None] * DIM + column[None, :], values, mask=mask, sem="relaxed")


def add_in_order(
    out: torch.Tensor, positions: torch.Tensor, order: torch.Tensor, gradients: torch.Tensor
) -> torch.Tensor:
    """`out` [num_rows, dim], sorted `positions` [n] and their `order`, `gradients` [n, dim] -> `out`."""
    num, dim = gradients.shape
    if num and dim:
        constants = _constants(dim, tl.float64 if out.dtype is torch.float64 else tl.float32)
        grid = _grid(num, dim, constants)
        launch(_add_in_order, grid, out, positions, order, gradients, num, **constants)
    return out


def add_by_atomics(out: torch.Tensor, positions: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """`out` [num_rows, dim], `positions` [n], `gradients` [n, dim] -> `out`."""
    num, dim = gradients.shape
    if num and dim:
        constants = constants_of(dim)
        grid = _grid(num, dim, constants)
        launch(_add_by_atomics, grid, out, positions, gradients, num, **constants)
    return out


def _grid(num: int, dim: int, constants: dict[str, Any]) -> tuple[int, int]:
    return triton.cdiv(num, constants["ROWS"]), triton.cdiv(dim, constants["COLUMNS"])


def _constants(dim: int, arithmetic: tl.dtype) -> dict[str, Any]:
    return {**constants_of(dim), "FLOAT": arithmetic}


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: rows of 128 elements in each dtype, and awkward ones."""
    for dtype in ROW_DTYPES:
        yield _variant(_add_in_order, dtype, _constants(128, tl.float32))
    yield _variant(_add_in_order, "fp32", _constants(60, tl.float32))
    for dtype in ROW_DTYPES:
        yield _variant(_add_by_atomics, dtype, constants_of(128))


def _variant(kernel: Any, dtype: str, constants: dict[str, Any]) -> Variant:
    rows, positions = f"*{dtype}", "*i32" if kernel is _add_in_order else "*i64"
    types = {"out": rows, "positions": positions, "order": "*i64", "gradients": rows, "num": "i64"}
    signature = {name: kind for name, kind in types.items() if name in kernel.arg_names}
    return Variant(
        op="scatter_add",
        name=f"{kernel.__name__[1:]} {dtype} {constants['DIM']}",
        kernel=kernel,
        signature=signature,
        constexprs=constants,
        aligned=("out", "gradients"),
        # Atomics have accesses of their own.
        moves_rows=kernel is _add_in_order,
    )
