"""Learned attention biases of the distance in positions and in time, shared by the sequence models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch.nn import functional

from nestpipe.kernels.padding import Padding

NUM_TIME_BUCKETS = 129
TIME_BUCKET_WIDTH = 0.301


@dataclass(frozen=True)
class TokenTimes:
    """When each token happened: `timestamps_s` [num_tokens], int64, in seconds."""

    timestamps_s: torch.Tensor
    padding: Padding

    @cached_property
    def buckets(self) -> torch.Tensor:
        """`time_buckets` of the padded samples [S, width, width]; the layers of a model share them."""
        return time_buckets(self.padding.pad(self.timestamps_s))


def time_buckets(timestamps_s: torch.Tensor) -> torch.Tensor:
    """Bucket `floor(ln(max(|dt|, 1)) / 0.301)`, at most 128, of each two tokens of a sample.

    [S, N] seconds -> [S, N, N], int64.
    """
    return _bucket_of((timestamps_s.unsqueeze(2) - timestamps_s.unsqueeze(1)).abs())


def _bucket_of(distances_s: torch.Tensor) -> torch.Tensor:
    # float64, so that the edges of the buckets are the same in every dtype of the model.
    buckets = (distances_s.clamp(min=1).double().log() / TIME_BUCKET_WIDTH).long()
    return buckets.clamp(max=NUM_TIME_BUCKETS - 1)


@cache
def time_bucket_edges(device: torch.device) -> torch.Tensor:
    """The shortest whole distance of each bucket, or of the next one that has any: [129] seconds, int64.

    A distance that a logarithm of any precision puts next to edge b is in bucket b or in the one below, and
    one comparison with the edge says in which: the buckets of `time_buckets` without float64.
    """
    buckets = torch.arange(NUM_TIME_BUCKETS)
    below, edges = torch.zeros_like(buckets), torch.full_like(buckets, 2**62)
    for _ in range(62):
        middle = (below + edges) // 2
        reached = _bucket_of(middle) >= buckets
        below, edges = torch.where(reached, below, middle), torch.where(reached, middle, edges)
    return edges.to(device)


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
