"""Batches of keys for tests of clustering, and what sets say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

Keys = set[tuple[str, int]]


def jagged(samples: Mapping[str, Sequence[ArrayLike]]) -> KeyedJaggedTensor:
    """Features of the given ids: one list of ids a sample."""
    ids = [np.asarray(each, dtype=np.int64) for feature in samples.values() for each in feature]
    return KeyedJaggedTensor(
        list(samples),
        torch.from_numpy(np.concatenate([*ids, np.empty(0, dtype=np.int64)])),
        lengths=torch.tensor([len(each) for each in ids]),
    )


def topics(
    sizes: Sequence[int], num_keys: int, *, shuffle: bool = True
) -> tuple[KeyedJaggedTensor, NDArray[np.int64]]:
    """A topic for each of `sizes`, of that many samples with half of the topic's `num_keys` keys each.

    Every sample has a hot key as well, and two that no other has. Also returns each sample's topic.
    """
    random = np.random.default_rng(0)
    topic_of = np.repeat(np.arange(len(sizes)), sizes)
    if shuffle:
        topic_of = random.permutation(topic_of)
    ids = [
        [
            *(topic * num_keys + random.permutation(num_keys)[: num_keys // 2]),
            10**6,
            10**7 + 2 * s,
            10**7 + 2 * s + 1,
        ]
        for s, topic in enumerate(topic_of)
    ]
    return jagged({"a": ids}), topic_of


def sets_of(features: KeyedJaggedTensor, tables: Mapping[str, str] | None = None) -> list[Keys]:
    """The keys of each sample."""
    sets: list[Keys] = [set() for _ in range(features.stride())]
    for name in features.keys():  # noqa: SIM118
        table = (tables or {}).get(name, name)
        part = features[name]
        for keys, ids in zip(sets, part.values().split(part.lengths().tolist()), strict=True):
            keys |= {(table, number) for number in ids.tolist()}
    return sets


def rows_by_sets(sets: Sequence[Keys], order: NDArray[np.int64], sizes: Sequence[int]) -> int:
    """Unique keys of each micro-batch, summed."""
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return sum(len(set().union(*(sets[sample] for sample in part))) for part in parts)
