"""Key-centric clustering: its parts against sets and brute force, its result on batches of every kind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe import clustering
from nestpipe.clustering import (
    best_swaps,
    key_centric_order,
    order_of,
    pair_growing_order,
    pair_overlaps,
    set_growing_order,
    swap,
    worth_of,
)
from nestpipe.shared_keys import SharedKeys, micro_batches_of
from tests.nestpipe.key_batches import jagged, rows_by_sets, sets_of, topics


def skewed(num_samples: int, seed: int = 0) -> KeyedJaggedTensor:
    """Three features of uneven lengths, with hot ids, rare ids and samples without any."""
    random = np.random.default_rng(seed)
    return jagged(
        {
            name: [
                (random.pareto(0.7, int(random.integers(0, 12))) * 3).astype(np.int64) % bound
                for _ in range(num_samples)
            ]
            for name, bound in (("a", 10**12), ("b", 10**12), ("c", 7))
        }
    )


@pytest.mark.parametrize("num_samples", [1, 2, 63, 64, 65])
def test_rows_are_those_that_sets_count(num_samples: int) -> None:
    features = skewed(num_samples)
    sizes = [num_samples - num_samples // 3, 0, num_samples // 3]
    order = np.random.default_rng(1).permutation(num_samples)
    for tables in ({}, {"a": "x", "c": "x"}):
        shared = SharedKeys.of(features, tables)
        sets = sets_of(features, tables)
        assert shared.num_unique == len(set().union(*sets))
        assert shared.num_rows(order, sizes) == rows_by_sets(sets, order, sizes)


def test_ids_of_any_size_are_told_apart() -> None:
    ids = np.array([0, 1, -1, 2**62, 2**62 + 1, 2**31, -(2**63)])
    shared = SharedKeys.of(jagged({"a": [ids, ids[:3]]}))
    assert shared.num_unique == len(ids)
    assert shared.frequencies.tolist() == [2, 2, 2]


def test_overlaps_are_sums_over_common_keys() -> None:
    num_samples = 70
    features = skewed(num_samples)
    shared = SharedKeys.of(features)
    # Both ways to sum, by pairs and by matrix, have something to do.
    assert shared.frequencies.min() < clustering._MATRIX_FREQUENCY < shared.frequencies.max()
    worth = worth_of(shared, [10, 60])
    overlaps = pair_overlaps(shared, worth)
    sets = sets_of(features)
    for one, other in itertools.product(range(num_samples), repeat=2):
        common = sets[one] & sets[other] if one != other else set()
        expected = sum(_worth(sum(key in each for each in sets), [10, 60]) for key in common)
        assert overlaps[one, other] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def _worth(frequency: int, sizes: list[int]) -> float:
    chance = sum((size / sum(sizes)) ** 2 for size in sizes)
    worth = (1 - chance) ** (frequency - 2)
    return worth if worth >= 0.01 else 0.0


def inside(overlaps: np.ndarray, order: np.ndarray, sizes: list[int]) -> float:
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return sum(float(overlaps[np.ix_(part, part)].sum()) / 2 for part in parts)


def test_every_round_of_swaps_brings_more_together() -> None:
    random = np.random.default_rng(3)
    upper = np.triu(random.random((60, 60)), 1).astype(np.float32)
    overlaps = upper + upper.T
    sizes = [1, 19, 10, 30]
    order = random.permutation(60)
    for _ in range(1000):
        micro_batches = micro_batches_of(order, sizes)
        shares = np.stack([overlaps[:, micro_batches == part].sum(axis=1) for part in range(4)], axis=1)
        left, right = best_swaps(shares, overlaps, order, sizes)
        swapped = order.copy()
        swapped[left], swapped[right] = order[right], order[left]
        # One round of `swap` is these swaps, and several are as many times one.
        assert swap(overlaps, order, sizes, 1).tolist() == swapped.tolist()
        if not len(left):
            break
        touched = micro_batches[order[np.concatenate([left, right])]].tolist()
        assert len(set(touched)) == len(touched)
        assert inside(overlaps, swapped, sizes) > inside(overlaps, order, sizes)
        order = swapped
    assert sorted(order.tolist()) == list(range(60))
    start = np.random.default_rng(4).permutation(60)
    one_by_one = start
    for _ in range(5):
        one_by_one = swap(overlaps, one_by_one, sizes, 1)
    assert swap(overlaps, start, sizes, 5).tolist() == one_by_one.tolist()


def removed_share(shared: SharedKeys, order: np.ndarray, planted: np.ndarray, sizes: list[int]) -> float:
    """Of the rows that the batch's own order asks for beyond the planted one, what `order` saves."""
    own, least, ours = (
        shared.num_rows(each, sizes) for each in (np.arange(shared.num_samples), planted, order)
    )
    return (own - ours) / (own - least)


@pytest.mark.parametrize(("sizes", "least"), [([8] * 8, 1.0), ([2, 4, 8, 16, 16, 8, 6, 4], 0.8)])
def test_planted_topics_are_found(sizes: list[int], least: float) -> None:
    features, topic_of = topics(sizes, num_keys=20)
    order = key_centric_order(features, sizes).numpy()
    planted = np.argsort(topic_of, kind="stable")
    assert removed_share(SharedKeys.of(features), order, planted, sizes) >= least


def test_equal_ids_of_two_features_are_two_keys_unless_they_read_one_table() -> None:
    ids = [[number] for number in range(4)]
    nothing: list[list[int]] = [[]] * 4
    features = jagged({"a": [*ids, *nothing], "b": [*nothing, *ids]})
    sizes = [2] * 4
    assert key_centric_order(features, sizes).tolist() == list(range(8))
    order = key_centric_order(features, sizes, {"a": "t", "b": "t"})
    assert sorted(sorted(pair) for pair in order.view(4, 2).tolist()) == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("seed", range(5))
def test_never_more_rows_than_in_the_batches_own_order(seed: int) -> None:
    features = skewed(37, seed)
    for sizes in ([37, 0], [1] * 37, [5, 17, 15], [0, 36, 1]):
        shared = SharedKeys.of(features)
        order = key_centric_order(features, sizes)
        assert torch.equal(order, key_centric_order(features, sizes))
        assert sorted(order.tolist()) == list(range(37))
        assert shared.num_rows(order.numpy(), sizes) <= shared.num_rows(np.arange(37), sizes)


def test_a_batch_that_lies_well_stays_as_it_is() -> None:
    sizes = [4] * 8
    features, _ = topics(sizes, num_keys=6, shuffle=False)
    assert key_centric_order(features, sizes).tolist() == list(range(32))


@pytest.mark.parametrize("lengths", [[], [0], [3], [0, 0, 0], [1, 0, 2]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_batches_of_little(lengths: list[int], dtype: torch.dtype) -> None:
    num = len(lengths)
    features = KeyedJaggedTensor(
        ["a"], torch.zeros(sum(lengths), dtype=dtype), lengths=torch.tensor(lengths, dtype=torch.int32)
    )
    for sizes in ([num], [0, num, 0], [1] * num + [0] * 5):
        assert sorted(key_centric_order(features, sizes).tolist()) == list(range(num))


def test_a_large_batch_is_clustered_without_a_table_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "MAX_PAIRED_SAMPLES", 95)
    monkeypatch.setattr(clustering, "pair_overlaps", None)
    sizes = [12] * 6 + [24]
    features, topic_of = topics(sizes, num_keys=20)
    shared = SharedKeys.of(features)
    planted = np.argsort(topic_of, kind="stable")
    assert removed_share(shared, order_of(shared, sizes), planted, sizes) > 0.95


def test_sets_grow_by_the_sample_with_most_keys_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sample 3 shares one key with each of the first three, sample 4 two with the first: more of the set.
    features = jagged({"a": [[1, 2, 3, 4, 5, 6], [1, 4, 5, 6], [1, 4, 5], [1], [2, 3], [7]]})
    monkeypatch.setattr(clustering, "worth_of", lambda shared, sizes: np.ones(len(shared.frequencies)))
    shared = SharedKeys.of(features)
    assert set_growing_order(shared, [4, 0, 2])[:4].tolist() == [0, 1, 2, 4]
    assert pair_growing_order(shared, [4, 0, 2], num_swap_rounds=0)[:4].tolist() == [0, 1, 2, 3]
