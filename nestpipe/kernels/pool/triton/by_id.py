"""What each id gets from its bag in the backward pass: its row's gradient, and its weight's."""

from __future__ import annotations

import torch
import triton.language as tl

from nestpipe.kernels.dispatch import launch
from nestpipe.kernels.pool.triton.blocks import jit, launch_options, load_rows, share_of


@jit
def spread_bags(
    gradients,
    bags,
    weights,
    bag_offsets,
    out,
    num,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """`out` [num, DIM]: the gradient of each id's bag, times its weight, over the number of ids."""
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = index < num
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    bag = tl.load(bags + index, mask=inside, other=0)
    value = load_rows(gradients, bag, inside, column, DIM, FLOAT)
    if weights is not None or bag_offsets is not None:
        value *= share_of(weights, bag_offsets, index, bag, inside, FLOAT)[:, None]
    mask = inside[:, None] & (column < DIM)[None, :]
    tl.store(out + index[:, None] * DIM + column[None, :], value.to(out.dtype.element_ty), mask=mask)


@jit
def dot_rows(
    rows,
    ids,
    gradients,
    bags,
    bag_offsets,
    out,
    num,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """`out` [num]: the product of each id's row with its bag's gradient, over the number of ids."""
    index = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = index < num
    bag = tl.load(bags + index, mask=inside, other=0)
    position = index if ids is None else tl.load(ids + index, mask=inside, other=0)
    total = tl.zeros([ROWS, COLUMNS], FLOAT)
    for first in range(0, DIM, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        row = load_rows(rows, position, inside, column, DIM, FLOAT)
        total += row * load_rows(gradients, bag, inside, column, DIM, FLOAT)
    dots = tl.sum(total, axis=1)
    if bag_offsets is not None:
        dots *= share_of(None, bag_offsets, index, bag, inside, FLOAT)
    tl.store(out + index, dots.to(out.dtype.element_ty), mask=inside)


def row_gradients(
    gradients: torch.Tensor,
    bags: torch.Tensor,
    weights: torch.Tensor | None,
    bag_offsets: torch.Tensor | None,
) -> torch.Tensor:
    """Of rows that the bags take one after the other: `bags` [num_ids] of the ids -> [num_ids, dim]."""
    out = gradients.new_empty(len(bags), gradients.shape[1])
    if out.numel():
        grid, options = launch_options(gradients, len(out))
        launch(spread_bags, grid, gradients, bags, weights, bag_offsets, out, len(out), **options)
    return out


def weight_gradients(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    gradients: torch.Tensor,
    bags: torch.Tensor,
    bag_offsets: torch.Tensor | None,
) -> torch.Tensor:
    """Of the ids' weights: `bags` [num_ids] of the ids -> [num_ids]; `bag_offsets` for a mean."""
    out = rows.new_empty(len(bags))
    if out.numel():
        (num_programs, _), options = launch_options(rows, len(out))
        arguments = rows, ids, gradients, bags, bag_offsets, out, len(out)
        launch(dot_rows, (num_programs,), *arguments, **options)
    return out
