"""Pooling by kernels, with its gradients."""

from __future__ import annotations

from typing import Any

import torch

from nestpipe.kernels.occurrences import Occurrences
from nestpipe.kernels.pool.triton.by_id import row_gradients, weight_gradients
from nestpipe.kernels.pool.triton.sums import pool, pool_by_row


class PoolRows(torch.autograd.Function):
    """Arguments as of the reference; differentiable once, by `rows` and `weights`."""

    @staticmethod
    def forward(
        context: Any,
        rows: torch.Tensor,
        ids: torch.Tensor | None,
        offsets: torch.Tensor,
        mean: bool,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        needs_rows = weights is not None and weights.requires_grad
        context.save_for_backward(rows if needs_rows else None, ids, offsets, weights)
        context.num_rows, context.mean = rows.shape[0], mean
        return pool(rows, ids, offsets, mean, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, ids, offsets, weights = context.saved_tensors
        num_ids = context.num_rows if ids is None else ids.numel()
        bags = torch.repeat_interleave(offsets.diff(), output_size=num_ids)
        gradient = gradient.contiguous()
        shared = offsets if context.mean else None
        of_rows = of_weights = None
        if context.needs_input_grad[0] and ids is None:
            of_rows = row_gradients(gradient, bags, weights, shared)
        elif context.needs_input_grad[0]:
            occurrences = Occurrences.of(ids, context.num_rows)
            of_rows = pool_by_row(gradient, occurrences, bags, weights, shared)
        if context.needs_input_grad[4]:
            of_weights = weight_gradients(rows, ids, gradient, bags, shared)
        return of_rows, None, None, None, of_weights
