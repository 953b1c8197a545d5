"""Counter-based random numbers against published values, integer arithmetic and their distributions."""

import numpy as np
import pytest
import torch

from tests.workloads.statistics import fits, follows, normal_cdf
from workloads import hashing
from workloads.models import dropout

MASK = (1 << 64) - 1


def mix(state: int) -> int:
    """SplitMix64's finaliser on Python integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def chained(seed: int, *coordinates: int) -> int:
    state = mix(seed & MASK)
    for coordinate in coordinates:
        state = mix(((state ^ (coordinate & MASK)) + 0x9E3779B97F4A7C15) & MASK)
    return state


def test_stream_is_splitmix64():
    drawn = hashing.hash_stream(np.zeros(3, dtype=np.uint64), np.arange(3))
    assert [int(value) for value in drawn] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5])
def test_hash_is_a_function_of_its_coordinates(seed: int):
    rows, columns = np.array([0, 7, -3]), np.array([2**62, 5])
    hashes = hashing.hash_of(seed, 4, rows[:, np.newaxis], columns)
    expected = [[chained(seed, 4, row, column) for column in columns.tolist()] for row in rows.tolist()]
    assert hashes.tolist() == expected


def test_torch_draws_the_same_numbers():
    seeds = torch.tensor([5, -9, 2**62])
    drawn = dropout.uniform_of(seeds, torch.tensor([3, 4, 5]))
    expected = [chained(seed, value) for seed, value in zip(seeds.tolist(), [3, 4, 5], strict=True)]
    assert drawn.tolist() == [(value >> 11) * 2.0**-53 for value in expected]


def test_distributions():
    hashes = hashing.hash_of(11, np.arange(100_000))
    assert follows(hashing.uniform(hashes), lambda x: x)
    assert follows(hashing.normal(hashes), normal_cdf)
    counts = np.bincount(hashing.below(hashes, 7), minlength=7)
    assert len(counts) == 7
    assert fits(counts)


def test_largest_hash_stays_below_the_bound():
    largest = np.array([MASK], dtype=np.uint64)
    for bound in (1, 3, 2**20, 200_000, 2**31 - 1):
        assert hashing.below(largest, bound) == bound - 1
