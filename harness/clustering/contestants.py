"""The ways to sort samples into micro-batches that `nestpipe data clustering` compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from harness.clustering.counted_swaps import counted_swaps_order
from harness.clustering.min_hash import min_hash_order
from harness.clustering.principal import principal_order
from nestpipe.clustering import pair_growing_order, set_growing_order
from nestpipe.shared_keys import Ints, SharedKeys

Contestant = Callable[[SharedKeys, Sequence[int]], Ints]
"""From a batch's shared keys and the sizes of its micro-batches to an order [num_samples]."""

RANDOM = "random"
ENGINE = "pair-growing + swaps"
"""What `nestpipe.clustering` does, but for large batches."""


def random_order(shared: SharedKeys, sizes: Sequence[int]) -> Ints:
    """An order drawn uniformly, the same for the same batch."""
    return np.random.default_rng(len(shared.samples)).permutation(shared.num_samples)


CONTESTANTS: Mapping[str, Contestant] = {
    RANDOM: random_order,
    "min-hash": min_hash_order,
    "principal direction": principal_order,
    "set-growing": set_growing_order,
    "pair-growing": partial(pair_growing_order, num_swap_rounds=0),
    ENGINE: pair_growing_order,
    "counted swaps": counted_swaps_order,
}
