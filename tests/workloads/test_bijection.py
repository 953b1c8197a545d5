"""A bijection must hit each number once, and spread neighbours."""

import numpy as np
import pytest

from tests.workloads.statistics import follows
from workloads.bijection import Bijection


@pytest.mark.parametrize("num", [1, 2, 3, 63, 64, 65, 1_000, 4_097])
@pytest.mark.parametrize("seed", range(4))
def test_each_number_once(num: int, seed: int):
    images = Bijection.of(num, seed, 7).at(np.arange(num))
    assert sorted(images.tolist()) == list(range(num))


def test_depends_on_seed_and_coordinates_alone():
    numbers = np.arange(1_000)
    first = Bijection.of(1_000, 3, 1).at(numbers)
    assert np.array_equal(first, Bijection.of(1_000, 3, 1).at(numbers))
    assert np.array_equal(first[[5, 9]], Bijection.of(1_000, 3, 1).at(np.array([5, 9])))
    for other in (Bijection.of(1_000, 4, 1), Bijection.of(1_000, 3, 2)):
        assert (other.at(numbers) == first).mean() < 0.02


@pytest.mark.parametrize("num", [1_000_000, 10**9, 10**9 + 7])
def test_the_first_numbers_are_spread_evenly(num: int):
    images = Bijection.of(num, 5).at(np.arange(2_000))
    assert follows(images / num, lambda x: x)
    assert follows((images % 997) / 997, lambda x: x)
    # Nor do neighbours stay a fixed distance apart.
    assert len(set(np.diff(images).tolist())) > 500
