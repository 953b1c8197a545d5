"""Statistics of batches against counting by hand."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe.clustering import key_centric_order
from workloads.interface import SequenceBatch
from workloads.statistics import QUANTILES, Statistics, describe, inflation_of

Samples = list[dict[str, list[int]]]
"""The keys of each sample by feature."""


def keyed(samples: Samples, features: Sequence[str]) -> KeyedJaggedTensor:
    rows = [sample[feature] for feature in features for sample in samples]
    return KeyedJaggedTensor(
        keys=list(features),
        values=torch.tensor([key for row in rows for key in row], dtype=torch.int64),
        lengths=torch.tensor([len(row) for row in rows], dtype=torch.int64),
    )


class Fixed:
    """A workload of given batches: [step][rank] samples."""

    name = "fixed"
    batch_size = 0

    def __init__(self, steps: list[list[Samples]]) -> None:
        self.steps = steps
        self.num_drawn = 0

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        raise AssertionError("statistics need no model")

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[SequenceBatch]:
        for step in self.steps[start_step:]:
            self.num_drawn += 1
            samples = step[rank]
            features = keyed(samples, list(samples[0]))
            yield SequenceBatch(features, None, torch.zeros(len(samples)), torch.arange(len(samples)))


def random_samples(generator: np.random.Generator, num: int) -> Samples:
    def keys(most: int, num_rows: int, few: int = 0) -> list[int]:
        return generator.integers(0, num_rows, size=int(generator.integers(few, most + 1))).tolist()

    # Equal ids in `item` and `user` are different rows.
    return [{"item": keys(6, 12), "negative": keys(9, 1_000, 9), "user": keys(1, 5, 1)} for _ in range(num)]


@pytest.fixture
def steps() -> list[list[Samples]]:
    generator = np.random.default_rng(0)
    return [[random_samples(generator, 7), random_samples(generator, 7)] for _ in range(4)]


def rows_of(batch: Samples, features: Sequence[str]) -> list[tuple[str, int]]:
    """Every key of a batch with its feature."""
    return [(feature, key) for sample in batch for feature in features for key in sample[feature]]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("feature", ["all", "item", "user"])
def test_numbers_are_those_of_a_count(steps: list[list[Samples]], num_workers: int, feature: str) -> None:
    workload = Fixed(steps)
    found = describe(workload, num_batches=3, num_workers=num_workers)
    assert workload.num_drawn == 4 * num_workers
    assert (found.num_samples, found.num_batches, found.num_workers) == (7 * num_workers, 3, num_workers)
    assert [each.feature for each in found.features] == ["all", "item", "user"]
    (ours,) = (each for each in found.features if each.feature == feature)
    features = ["item", "user"] if feature == "all" else [feature]
    batches = [[sample for part in step[:num_workers] for sample in part] for step in steps]
    keys = [rows_of(batch, features) for batch in batches]
    counts = [Counter(each) for each in keys]
    assert ours.num_keys == pytest.approx(np.mean([len(each) for each in keys[:3]]))
    assert ours.num_unique == pytest.approx(np.mean([len(each) for each in counts[:3]]))
    assert ours.duplicates == pytest.approx(ours.num_keys - ours.num_unique)
    assert ours.unique_ratio == pytest.approx(np.mean([len(set(each)) / len(each) for each in keys[:3]]))
    shared = [len(set(a) & set(b)) / len(set(a)) for a, b in itertools.pairwise(keys)]
    assert ours.next_overlap == pytest.approx(np.mean(shared))
    # 5 % of at most 17 rows are one row.
    tops = [each.most_common(1)[0][1] / each.total() for each in counts[:3]]
    assert ours.top_share == pytest.approx(np.mean(tops))
    lengths = [sum(len(s[name]) for name in features) for batch in batches[:3] for s in batch]
    assert ours.mean_length == pytest.approx(np.mean(lengths))
    assert ours.length_quantiles == pytest.approx(np.quantile(lengths, QUANTILES))
    first_rank, first = ours.accesses_by_rank[0]
    assert first_rank == 1
    assert first == pytest.approx(np.mean([max(each.values()) for each in counts[:3]]))
    last_rank, last = ours.accesses_by_rank[-1]
    assert last_rank == min(len(each) for each in counts[:3])
    assert last == pytest.approx(np.mean([each.most_common()[last_rank - 1][1] for each in counts[:3]]))


def brute_inflation(samples: Samples, order: Sequence[int], sizes: Sequence[int]) -> float:
    """By sets: unique rows of the micro-batches over unique rows of the batch."""
    left = list(order)
    total = 0
    for size in sizes:
        part, left = left[:size], left[size:]
        total += len(set(rows_of([samples[index] for index in part], ["item", "user"])))
    return total / len(set(rows_of(samples, ["item", "user"])))


@pytest.mark.parametrize("num_samples", [1, 2, 7, 40])
def test_inflation_is_that_of_sets(num_samples: int) -> None:
    samples = random_samples(np.random.default_rng(num_samples), num_samples)
    features = keyed(samples, ["item", "user"])
    found = inflation_of(features)
    assert list(found) == [num for num in (1, 2, 4, 8, 16, 32) if num <= num_samples]
    for num, (own, clustered) in found.items():
        cuts = [index * num_samples // num for index in range(num + 1)]
        sizes = [end - start for start, end in itertools.pairwise(cuts)]
        assert own == pytest.approx(brute_inflation(samples, range(num_samples), sizes))
        order = key_centric_order(features, sizes).tolist()
        assert clustered == pytest.approx(brute_inflation(samples, order, sizes))
    assert found[1] == (1.0, 1.0)


def test_inflation_is_a_mean_over_workers_and_batches(steps: list[list[Samples]]) -> None:
    found = describe(Fixed(steps), num_batches=3, num_workers=2)
    each = [inflation_of(keyed(part, ["item", "user"])) for step in steps[:3] for part in step]
    assert [level.num_micro_batches for level in found.inflation] == [1, 2, 4]
    for level in found.inflation:
        mean = np.mean([one[level.num_micro_batches] for one in each], axis=0)
        assert (level.own_order, level.clustered) == pytest.approx(tuple(mean))


def described(batch: Samples) -> Statistics:
    return describe(Fixed([[batch], [batch]]), num_batches=1)


def test_batches_without_keys() -> None:
    found = described([{"item": []}, {"item": []}])
    for each in found.features:
        assert (each.num_keys, each.unique_ratio, each.next_overlap, each.top_share) == (0, 0, 0, 0)
        assert each.zipf_exponent is None
        assert each.accesses_by_rank == ()
    assert [(level.own_order, level.clustered) for level in found.inflation] == [(1.0, 1.0), (1.0, 1.0)]


def test_equal_and_different_keys_are_the_extremes() -> None:
    equal = described([{"item": [4, 4]} for _ in range(4)])
    assert (equal.features[0].unique_ratio, equal.features[0].next_overlap) == (1 / 8, 1.0)
    assert [level.own_order for level in equal.inflation] == [1.0, 2.0, 4.0]
    unique = described([{"item": [2 * index, 2 * index + 1]} for index in range(4)])
    assert (unique.features[0].unique_ratio, unique.features[0].duplicates) == (1.0, 0.0)
    assert [level.own_order for level in unique.inflation] == [1.0, 1.0, 1.0]
