"""Sums of rows by segment: a program adds the rows of a few segments, each in the order of its ids.

A segment is a bag in the forward pass, and all occurrences of one row in the backward pass. A hot row occurs
so often that one program would be late: whole blocks of occurrences of one row are added beforehand, each
by a program of its own, and the row's program reads their partial sums. Nothing depends on which program
runs first. Sums are in float32 (float64 for float64 rows) and rounded once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from nestpipe.kernels.dispatch import launch
from nestpipe.kernels.occurrences import Occurrences
from nestpipe.kernels.pool.triton.blocks import divided, jit, launch_options, load_rows, share_of

BLOCK = 128
"""Occurrences that one program adds."""


@triton.jit
def _values_of(
    index,
    last,
    source,
    order,
    positions,
    weights,
    bag_offsets,
    column,
    DIM: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """What the ids `index` [ROWS] of each segment add to it, zeros from `last` on: [ROWS, COLUMNS]."""
    inside = index < last
    if order is not None:
        index = tl.load(order + index, mask=inside, other=0)
    position = index if positions is None else tl.load(positions + index, mask=inside, other=0)
    value = load_rows(source, position, inside, column, DIM, FLOAT)
    if weights is not None or bag_offsets is not None:
        value *= share_of(weights, bag_offsets, index, position, inside, FLOAT)[:, None]
    return value


@triton.jit
def _add_run(
    total,
    first,
    last,
    source,
    order,
    positions,
    weights,
    bag_offsets,
    column,
    DIM: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """`total` [ROWS, COLUMNS] and what the ids `first` to `last - 1` [ROWS] of each segment add to it."""
    for step in range(0, tl.max(last - first, axis=0), 2):
        index = first + step
        # Two at a time, so that the second one's loads do not wait for the first one's.
        one = _values_of(index, last, source, order, positions, weights, bag_offsets, column, DIM, FLOAT)
        two = _values_of(index + 1, last, source, order, positions, weights, bag_offsets, column, DIM, FLOAT)
        total += one
        total += two
    return total


@jit
def add_blocks(
    source,
    order,
    positions,
    weights,
    bag_offsets,
    row_of,
    partial,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """`partial` [num // BLOCK, DIM]: the sum of each block that is all of one row; others stay undefined."""
    block = tl.program_id(0).to(tl.int64)
    if tl.load(row_of + block * BLOCK) == tl.load(row_of + block * BLOCK + BLOCK - 1):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        first = block * BLOCK + tl.arange(0, ROWS) * (BLOCK // ROWS)
        total = tl.zeros([ROWS, COLUMNS], FLOAT)
        total = _add_run(
            total,
            first,
            first + BLOCK // ROWS,
            source,
            order,
            positions,
            weights,
            bag_offsets,
            column,
            DIM,
            FLOAT,
        )
        tl.store(partial + block * DIM + column, tl.sum(total, axis=0), mask=column < DIM)


@jit
def add_segments(
    source,
    order,
    positions,
    weights,
    bag_offsets,
    offsets,
    partial,
    out,
    num,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    MEAN: tl.constexpr,
    FLOAT: tl.constexpr,
):
    """`out` [num, DIM]: the sum or mean of each segment; `partial` has its whole blocks, or is None."""
    # 64-bit arithmetic: a table may hold more than 2**31 elements.
    segment = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.load(offsets + segment, mask=segment < num, other=0)
    last = tl.load(offsets + segment + 1, mask=segment < num, other=0)
    total = tl.zeros([ROWS, COLUMNS], FLOAT)
    rest = first
    if partial is not None:
        whole, end = tl.cdiv(first, BLOCK), last // BLOCK
        rest = tl.minimum(whole * BLOCK, last)
        total = _add_run(
            total, first, rest, source, order, positions, weights, bag_offsets, column, DIM, FLOAT
        )
        total = _add_run(total, whole, end, partial, None, None, None, None, column, DIM, FLOAT)
        rest = tl.maximum(rest, end * BLOCK)
    total = _add_run(total, rest, last, source, order, positions, weights, bag_offsets, column, DIM, FLOAT)
    if MEAN:
        count = tl.maximum(last - first, 1).to(FLOAT)[:, None]
        total = divided(total, tl.broadcast_to(count, total.shape), FLOAT)
    mask = (segment < num)[:, None] & (column < DIM)[None, :]
    tl.store(out + segment[:, None] * DIM + column[None, :], total.to(out.dtype.element_ty), mask=mask)


def pool(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    offsets: torch.Tensor,
    mean: bool,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """Arguments as of the reference, [S, dim]."""
    out = rows.new_empty(len(offsets) - 1, rows.shape[1])
    if out.numel():
        grid, options = launch_options(rows, len(out))
        arguments = rows, None, ids, weights, None, offsets, None, out, len(out)
        launch(add_segments, grid, *arguments, BLOCK=BLOCK, MEAN=mean, **options)
    return out


def pool_by_row(
    source: torch.Tensor,
    occurrences: Occurrences,
    positions: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    bag_offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    """[num_rows, dim]: for each row the sum over the ids j where it occurs of what they have in `source`.

    That is `source[positions[j]]`, or `source[j]` without positions, times `weights[j]`, over the number of
    ids of bag `positions[j]`; what is None is left out.
    """
    num, dim = len(occurrences.order), source.shape[1]
    out = source.new_empty(len(occurrences.offsets) - 1, dim)
    if not out.numel():
        return out
    grid, options = launch_options(source, len(out))
    arguments = source, occurrences.order, positions, weights, bag_offsets
    partial = None
    if num >= BLOCK:
        kind = torch.promote_types(source.dtype, torch.float32)
        partial = source.new_empty(num // BLOCK, dim, dtype=kind)
        blocks = (len(partial), grid[1])
        launch(add_blocks, blocks, *arguments, occurrences.rows, partial, BLOCK=BLOCK, **options)
    results = occurrences.offsets, partial, out, len(out)
    launch(add_segments, grid, *arguments, *results, BLOCK=BLOCK, MEAN=False, **options)
    return out
