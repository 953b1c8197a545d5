"""Learned attention biases of the distance in positions and in time, shared by the sequence models."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

NUM_TIME_BUCKETS = 129
_TIME_BUCKET_WIDTH = 0.301


def time_buckets(timestamps_s: torch.Tensor) -> torch.Tensor:
    """Bucket `floor(ln(max(|dt|, 1)) / 0.301)`, at most 128, of each two tokens of a sample.

    [S, N] seconds -> [S, N, N], int64.
    """
    distance = (timestamps_s.unsqueeze(2) - timestamps_s.unsqueeze(1)).abs().clamp(min=1)
    # float64, so that the edges of the buckets are the same in every dtype of the model.
    buckets = (distance.double().log() / _TIME_BUCKET_WIDTH).long()
    return buckets.clamp(max=NUM_TIME_BUCKETS - 1)


def position_distances(width: int, device: torch.device) -> torch.Tensor:
    """How far each position (row) lies behind each other (column), negative ahead: [width, width]."""
    places = torch.arange(width, device=device)
    return places.unsqueeze(1) - places


def bias_of(bias: torch.Tensor, buckets: torch.Tensor) -> torch.Tensor:
    """`bias[buckets]` for a bias [num_buckets] of few elements and many `buckets` of any shape."""
    if buckets.is_cuda:
        return functional.embedding(buckets, bias.unsqueeze(1)).squeeze(-1)
    looked_up: torch.Tensor = _BiasLookup.apply(bias, buckets)
    return looked_up


class _BiasLookup(torch.autograd.Function):
    """On the CPU, torch's own gradient of this lookup would take longer than the rest of a block."""

    @staticmethod
    def forward(context: Any, bias: torch.Tensor, buckets: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(buckets)
        context.num_buckets = len(bias)
        return bias[buckets]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (buckets,) = context.saved_tensors
        values = gradient.flatten().double()
        sums = torch.bincount(buckets.flatten(), weights=values, minlength=context.num_buckets)
        return sums.to(gradient.dtype), None
