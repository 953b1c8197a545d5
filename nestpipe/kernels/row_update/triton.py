"""Row updates as Triton kernels: each row, its state and its gradient pass through registers once.

Arithmetic is in float32 (float64 for float64 rows), and what is stored is rounded once. Roots and
quotients are those of IEEE, as on the CPU: memory, not arithmetic, is what these kernels wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from nestpipe.kernels.aot import ROW_DTYPES, Variant
from nestpipe.kernels.dispatch import launch

ELEMENTS_A_PROGRAM = 1024
MAX_COLUMNS = 2048
"""Of a row that a program holds at a time."""

# One kernel for all numbers of rows: none is compiled while others train.
_jit = triton.jit(do_not_specialize=["num"], do_not_specialize_on_alignment=["positions"])


@triton.jit
def _places(positions, num, ROWS: tl.constexpr):
    """Of this program's rows: their numbers, where they lie, and which of them there are."""
    # 64-bit arithmetic: a table may hold more than 2**31 elements.
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = index < num
    row = index if positions is None else tl.load(positions + index, mask=inside, other=0)
    return index, row, inside


@triton.jit
def _load(tensor, row, column, mask, DIM: tl.constexpr, FLOAT: tl.constexpr):
    return tl.load(tensor + row[:, None] * DIM + column[None, :], mask=mask, other=0.0).to(FLOAT)


@triton.jit
def _store(tensor, row, column, mask, values, DIM: tl.constexpr):
    tl.store(tensor + row[:, None] * DIM + column[None, :], values.to(tensor.dtype.element_ty), mask=mask)


@triton.jit
def _scalar(value, FLOAT: tl.constexpr):
    """A hyper-parameter, which comes in double precision, in that of the arithmetic."""
    return tl.full((), value, FLOAT)


@triton.jit
def _root(x):
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
def _quotient(x, y):
    return x / y if x.dtype == tl.float64 else tl.div_rn(x, y)


@triton.jit
def _gradient(
    gradients, index, value, decay, column, mask, DIM: tl.constexpr, DECAY: tl.constexpr, FLOAT: tl.constexpr
):
    """The gradients of rows whose values are `value`, with L2 regularisation."""
    gradient = _load(gradients, index, column, mask, DIM, FLOAT)
    if DECAY:
        gradient += _scalar(decay, FLOAT) * value
    return gradient


@_jit
def _sgd(
    rows,
    gradients,
    positions,
    num,
    lr: tl.float64,
    decay: tl.float64,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DECAY: tl.constexpr,
    FLOAT: tl.constexpr,
):
    index, row, inside = _places(positions, num, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < DIM)[None, :]
    value = _load(rows, row, column, mask, DIM, FLOAT)
    gradient = _gradient(gradients, index, value, decay, column, mask, DIM, DECAY, FLOAT)
    _store(rows, row, column, mask, value - _scalar(lr, FLOAT) * gradient, DIM)


@_jit
def _row_wise_adagrad(
    rows,
    total,
    gradients,
    positions,
    num,
    lr: tl.float64,
    eps: tl.float64,
    decay: tl.float64,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DECAY: tl.constexpr,
    FLOAT: tl.constexpr,
):
    index, row, inside = _places(positions, num, ROWS)
    column = tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < DIM)[None, :]
    value = _load(rows, row, column, mask, DIM, FLOAT)
    gradient = _gradient(gradients, index, value, decay, column, mask, DIM, DECAY, FLOAT)
    squares = tl.sum(gradient * gradient, axis=1)
    # The first columns stay in registers; those beyond are read again below, while the cache has them.
    for first in range(COLUMNS, DIM, COLUMNS):
        beyond = inside[:, None] & (first + column < DIM)[None, :]
        more = _load(rows, row, first + column, beyond, DIM, FLOAT)
        more = _gradient(gradients, index, more, decay, first + column, beyond, DIM, DECAY, FLOAT)
        squares += tl.sum(more * more, axis=1)
    state = tl.load(total + row, mask=inside, other=1.0).to(FLOAT) + squares * _scalar(1.0 / DIM, FLOAT)
    tl.store(total + row, state.to(total.dtype.element_ty), mask=inside)
    rate = _quotient(_scalar(lr, FLOAT), _root(state) + _scalar(eps, FLOAT))[:, None]
    _store(rows, row, column, mask, value - rate * gradient, DIM)
    for first in range(COLUMNS, DIM, COLUMNS):
        beyond = inside[:, None] & (first + column < DIM)[None, :]
        value = _load(rows, row, first + column, beyond, DIM, FLOAT)
        gradient = _gradient(gradients, index, value, decay, first + column, beyond, DIM, DECAY, FLOAT)
        _store(rows, row, first + column, beyond, value - rate * gradient, DIM)


@_jit
def _adagrad(
    rows,
    total,
    gradients,
    positions,
    num,
    lr: tl.float64,
    eps: tl.float64,
    decay: tl.float64,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DECAY: tl.constexpr,
    FLOAT: tl.constexpr,
):
    index, row, inside = _places(positions, num, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < DIM)[None, :]
    value = _load(rows, row, column, mask, DIM, FLOAT)
    gradient = _gradient(gradients, index, value, decay, column, mask, DIM, DECAY, FLOAT)
    state = _load(total, row, column, mask, DIM, FLOAT) + gradient * gradient
    _store(total, row, column, mask, state, DIM)
    change = _quotient(gradient, _root(state) + _scalar(eps, FLOAT))
    _store(rows, row, column, mask, value - _scalar(lr, FLOAT) * change, DIM)


@_jit
def _adam(
    rows,
    momentum,
    variance,
    gradients,
    positions,
    num,
    rate: tl.float64,
    eps: tl.float64,
    first: tl.float64,
    first_rest: tl.float64,
    second: tl.float64,
    second_rest: tl.float64,
    second_bias: tl.float64,
    decay: tl.float64,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DECAY: tl.constexpr,
    FLOAT: tl.constexpr,
):
    index, row, inside = _places(positions, num, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = inside[:, None] & (column < DIM)[None, :]
    gradient = _load(gradients, index, column, mask, DIM, FLOAT)
    mean = _load(momentum, row, column, mask, DIM, FLOAT)
    mean = mean * _scalar(first, FLOAT) + gradient * _scalar(first_rest, FLOAT)
    _store(momentum, row, column, mask, mean, DIM)
    square = _load(variance, row, column, mask, DIM, FLOAT)
    square = square * _scalar(second, FLOAT) + gradient * gradient * _scalar(second_rest, FLOAT)
    _store(variance, row, column, mask, square, DIM)
    corrected = _quotient(square, _scalar(second_bias, FLOAT))
    change = _quotient(mean, _root(corrected) + _scalar(eps, FLOAT))
    value = _load(rows, row, column, mask, DIM, FLOAT)
    if DECAY:
        value *= _scalar(1.0 - decay, FLOAT)
    _store(rows, row, column, mask, value - _scalar(rate, FLOAT) * change, DIM)


def sgd(
    rows: torch.Tensor,
    gradients: torch.Tensor,
    positions: torch.Tensor | None,
    lr: float,
    weight_decay: float,
) -> None:
    """`gradients` [n, dim] for all rows or those at `positions` [n]."""
    _launch(_sgd, (rows,), gradients, positions, (lr,), weight_decay, with_decay=weight_decay != 0.0)


def row_wise_adagrad(
    rows: torch.Tensor,
    total: torch.Tensor,
    gradients: torch.Tensor,
    positions: torch.Tensor | None,
    lr: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`gradients` [n, dim] for all rows or those at `positions` [n]; `total` [num_rows, 1]."""
    _launch(
        _row_wise_adagrad,
        (rows, total),
        gradients,
        positions,
        (lr, eps),
        weight_decay,
        with_decay=weight_decay != 0.0,
        whole_rows=True,
    )


def adagrad(
    rows: torch.Tensor,
    total: torch.Tensor,
    gradients: torch.Tensor,
    positions: torch.Tensor | None,
    lr: float,
    eps: float,
    weight_decay: float,
) -> None:
    """`gradients` [n, dim] for all rows or those at `positions` [n]; `total` as `rows`."""
    with_decay = weight_decay != 0.0
    _launch(_adagrad, (rows, total), gradients, positions, (lr, eps), weight_decay, with_decay=with_decay)


def adam(
    rows: torch.Tensor,
    momentum: torch.Tensor,
    variance: torch.Tensor,
    gradients: torch.Tensor,
    positions: torch.Tensor | None,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    """`gradients` [n, dim] for all rows or those at `positions` [n]; the state as `rows`."""
    first, second = betas
    rate, second_bias = lr / (1.0 - first**step), 1.0 - second**step
    scalars = (rate, eps, first, 1.0 - first, second, 1.0 - second, second_bias)
    # A learning rate of 0 does not make it another kernel.
    with_decay, tensors = weight_decay != 0.0, (rows, momentum, variance)
    _launch(_adam, tensors, gradients, positions, scalars, lr * weight_decay, with_decay=with_decay)


def _launch(
    kernel: Any,
    tensors: tuple[torch.Tensor, ...],
    gradients: torch.Tensor,
    positions: torch.Tensor | None,
    scalars: tuple[float, ...],
    decay: float,
    *,
    with_decay: bool,
    whole_rows: bool = False,
) -> None:
    num, dim = gradients.shape
    if num and dim:
        is_double = tensors[0].dtype is torch.float64
        constants = _constants(dim, with_decay, tl.float64 if is_double else tl.float32)
        blocks_a_row = 1 if whole_rows else triton.cdiv(dim, constants["COLUMNS"])
        grid = (triton.cdiv(num, constants["ROWS"]), blocks_a_row)
        launch(kernel, grid, *tensors, gradients, positions, num, *scalars, decay, **constants)


def _constants(dim: int, with_decay: bool, arithmetic: tl.dtype) -> dict[str, Any]:
    """What a kernel is compiled for; a model has few dims, and a known one tells what is aligned."""
    columns = min(triton.next_power_of_2(dim), MAX_COLUMNS)
    num_rows = max(1, ELEMENTS_A_PROGRAM // columns)
    return {"DIM": dim, "COLUMNS": columns, "ROWS": num_rows, "DECAY": with_decay, "FLOAT": arithmetic}


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: rows of 128 elements in each dtype, their state in float32 as the
    engine has it, and awkward ones."""
    for dtype in ROW_DTYPES:
        yield _variant(_sgd, dtype)
        yield _variant(_row_wise_adagrad, dtype)
        yield _variant(_adagrad, dtype)
        yield _variant(_adam, dtype)
    yield _variant(_row_wise_adagrad, "fp32", dim=60, at_positions=True)
    yield _variant(_row_wise_adagrad, "bf16", dim=5000)
    yield _variant(_adam, "bf16", state="bf16")


def _variant(
    kernel: Any, dtype: str, *, dim: int = 128, state: str = "fp32", at_positions: bool = False
) -> Variant:
    constants = _constants(dim, True, tl.float32)
    signature = dict.fromkeys(kernel.arg_names, "fp64")
    signature |= {"rows": f"*{dtype}", "gradients": f"*{dtype}", "positions": "*i64", "num": "i64"}
    for name in {"total", "momentum", "variance"} & set(signature):
        signature[name] = f"*{state}"
    if not at_positions:
        constants["positions"] = None
    signature = {name: kind for name, kind in signature.items() if name not in constants}
    return Variant(
        op="row_update",
        name=f"{kernel.__name__[1:]} {dtype} {dim}{' at positions' if at_positions else ''}"
        f"{'' if state == 'fp32' else f' state {state}'}",
        kernel=kernel,
        signature=signature,
        constexprs=constants,
        aligned=tuple(
            name for name, kind in signature.items() if kind.startswith("*") and name != "positions"
        ),
    )
