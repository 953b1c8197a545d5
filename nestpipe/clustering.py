"""Key-centric sample clustering: samples that share keys go to the same micro-batch.

The paper does not give its algorithm. This one summarises each sample by a signed count sketch of its
keys and divides the batch recursively along the direction in which the sketches differ most, so that
samples with common keys stay on one side. Any order leaves the summed gradient unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

_SKETCH_WIDTH = 128
_POWER_ITERATIONS = 8
_HASH = 0x9E3779B97F4A7C15 - (1 << 64)  # Knuth's golden-ratio multiplier as a signed 64-bit number


def key_centric_order(features: KeyedJaggedTensor, sizes: Sequence[int]) -> torch.Tensor:
    """An order [num_samples] of the samples that puts those with common keys into the same micro-batch.

    `sizes` are the samples of each micro-batch. Keys of one sample only, which no order can help, are
    left out of the sketch, and frequent keys, which every micro-batch has anyway, count less.
    """
    num_samples = features.stride()
    order = torch.arange(num_samples)
    if features.values().numel() == 0 or sum(1 for size in sizes if size) < 2:
        return order
    _divide(_sketch(features.to(torch.device("cpu"))), order, list(sizes))
    return order


def _sketch(features: KeyedJaggedTensor) -> torch.Tensor:
    """Signed count sketch [num_samples, width] of each sample's shared keys."""
    stride, num_keys = features.stride(), len(features.keys())
    samples = torch.repeat_interleave(torch.arange(stride).repeat(num_keys), features.lengths())
    unique, inverse, counts = torch.unique(features.values(), return_inverse=True, return_counts=True)
    weights = torch.where(counts > 1, counts.rsqrt(), 0.0)
    hashed = (unique + 1) * _HASH
    columns = (hashed >> 20) % _SKETCH_WIDTH
    signs = ((hashed >> 50) & 1) * 2.0 - 1.0
    flat = samples * _SKETCH_WIDTH + columns.index_select(0, inverse)
    sketch = torch.zeros(stride * _SKETCH_WIDTH)
    sketch.index_add_(0, flat, (weights * signs).index_select(0, inverse).float())
    return sketch.view(stride, _SKETCH_WIDTH)


def _divide(sketch: torch.Tensor, order: torch.Tensor, sizes: list[int]) -> None:
    """Arrange `order` [n], a view, so that its leading sizes[0] samples belong together, and so on."""
    if len(sizes) < 2 or order.numel() < 2:
        return
    half = len(sizes) // 2
    left = sum(sizes[:half])
    if 0 < left < order.numel():
        own = sketch.index_select(0, order)
        centred = own - own.mean(0)
        order.copy_(order.index_select(0, torch.argsort(_principal_scores(centred), stable=True)))
    _divide(sketch, order[:left], sizes[:half])
    _divide(sketch, order[left:], sizes[half:])


def _principal_scores(centred: torch.Tensor) -> torch.Tensor:
    """Position of each row of `centred` [n, width] along its first principal direction."""
    gram = centred.t() @ centred
    direction = gram.diagonal().clone() + 1e-12
    for _ in range(_POWER_ITERATIONS):
        direction = gram @ direction
        direction /= direction.norm() + 1e-30
    return centred @ direction
