"""Min-hash order: samples sorted by their least keys in random orders of all keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nestpipe.shared_keys import Ints, SharedKeys

_NUM_HASHES = 4


def min_hash_order(shared: SharedKeys, sizes: Sequence[int]) -> Ints:
    """Samples sorted by `_NUM_HASHES` least keys, the first deciding first.

    The chance that two samples have the same least key is their Jaccard similarity (Broder, "On the
    resemblance and containment of documents", 1997). Samples without shared keys come last.
    """
    random = np.random.default_rng(0)
    num_keys = len(shared.frequencies)
    least = np.full((_NUM_HASHES, shared.num_samples), num_keys, dtype=np.int64)
    for hashes in least:
        np.minimum.at(hashes, shared.samples, random.permutation(num_keys)[shared.keys])
    # The last row of a lexsort decides first.
    return np.lexsort(least[::-1])
