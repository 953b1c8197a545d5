"""Expansion by kernels, with its gradient: an expansion is a gather, and its gradient a pooling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from nestpipe.kernels.aot import Variant
from nestpipe.kernels.gather.triton import gather_rows
from nestpipe.kernels.occurrences import Occurrences
from nestpipe.kernels.pool.triton import variant
from nestpipe.kernels.pool.triton.sums import add_blocks, add_segments, pool_by_row


class ExpandRows(torch.autograd.Function):
    """`rows` [n, dim], `inverse` [num_ids] -> [num_ids, dim]; differentiable once, by `rows`."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(inverse)
        context.num_rows = rows.shape[0]
        return gather_rows(rows, inverse, rows.new_empty(inverse.numel(), rows.shape[1]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (inverse,) = context.saved_tensors
        return pool_by_row(gradient.contiguous(), Occurrences.of(inverse, context.num_rows)), None


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: the gradient of rows of 128 elements and, uneven, of 60."""
    absent = ("positions", "weights", "bag_offsets")
    for dtype, dim in (("fp32", 128), ("bf16", 128), ("fp32", 60)):
        yield variant("expand", "gradient", add_segments, dtype, dim, absent, MEAN=False)
    yield variant("expand", "gradient, blocks", add_blocks, "fp32", 128, absent)
