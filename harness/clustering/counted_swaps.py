"""Swaps on the true count of rows, after pair-growing: how much its sum over pairs misses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from nestpipe.clustering import Floats, best_swaps, pair_growing_order, pair_overlaps
from nestpipe.shared_keys import Ints, SharedKeys, micro_batches_of

_NUM_ROUNDS = 40


def counted_swaps_order(shared: SharedKeys, sizes: Sequence[int]) -> Ints:
    """`pair_growing_order`, then rounds of swaps that save rows, counted anew after each.

    A swap saves at least what both samples find in their new micro-batch beyond what they had in the old
    one, less twice the keys that the two have in common, so every round asks for fewer rows.
    """
    sizes = [size for size in sizes if size]
    order = pair_growing_order(shared, sizes)
    if len(sizes) < 2 or not len(shared.frequencies):
        return order
    counter = _Counter.of(shared)
    common = pair_overlaps(shared, np.ones(len(shared.frequencies)))
    for _ in range(_NUM_ROUNDS):
        left, right = best_swaps(counter.company(order, sizes), common, order, sizes)
        if not len(left):
            break
        order[left], order[right] = order[right], order[left]
    return order


@dataclass(frozen=True)
class _Counter:
    """Shared keys both ways, as the bags that torch sums quickly."""

    samples: torch.Tensor
    sample_offsets: torch.Tensor
    keys: torch.Tensor
    key_offsets: torch.Tensor

    @classmethod
    def of(cls, shared: SharedKeys) -> _Counter:
        keys, offsets = shared.by_sample()
        sample_offsets = np.cumsum(shared.frequencies) - shared.frequencies
        numbers = (shared.samples, sample_offsets, keys, offsets[:-1])
        return cls(*(torch.from_numpy(each) for each in numbers))

    def company(self, order: Ints, sizes: Sequence[int]) -> Floats:
        """Keys of each sample that another sample of each micro-batch has: [num_samples, len(sizes)]."""
        micro_batches = torch.from_numpy(micro_batches_of(order, sizes)).unsqueeze(1)
        is_in = torch.zeros(len(order), len(sizes)).scatter_(1, micro_batches, 1.0)
        counts = embedding_bag(self.samples, is_in, self.sample_offsets, mode="sum")
        company = embedding_bag(self.keys, (counts > 0).float(), self.key_offsets, mode="sum")
        own = embedding_bag(self.keys, (counts > 1).float(), self.key_offsets, mode="sum")
        result: Floats = company.scatter_(1, micro_batches, own.gather(1, micro_batches)).numpy()
        return result
