"""The alias table must give back exactly the probabilities that it was made of."""

import numpy as np
import pytest

from tests.workloads.statistics import fits, slope
from workloads.hashing import hash_of
from workloads.zipf import AliasTable, zipf_probabilities


def probabilities_of(table: AliasTable) -> np.ndarray:
    """What the table draws: each column is chosen equally often, then keeps or gives away."""
    num = len(table.keep)
    own = np.bincount(np.arange(num), weights=table.keep, minlength=num)
    given = np.bincount(table.alias, weights=1.0 - table.keep, minlength=num)
    return (own + given) / num


@pytest.mark.parametrize("num_rows", [1, 2, 3, 63, 1_000, 50_000])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3, 4.0])
def test_zipf_is_exact(num_rows: int, exponent: float):
    expected = zipf_probabilities(num_rows, exponent)
    np.testing.assert_allclose(probabilities_of(AliasTable.of(expected)), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(20))
def test_any_distribution_is_exact(seed: int):
    generator = np.random.default_rng(seed)
    weights = generator.exponential(size=int(generator.integers(1, 200))) ** 3
    weights[generator.random(len(weights)) < 0.2] = 0.0
    expected = (weights + 1e-300) / (weights + 1e-300).sum()
    np.testing.assert_allclose(probabilities_of(AliasTable.of(expected)), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.2])
def test_slope_of_draws(exponent: float):
    num_rows = 10_000
    table = AliasTable.of(zipf_probabilities(num_rows, exponent))
    drawn = table.draw(hash_of(1, np.arange(2_000_000)))
    counts = np.bincount(drawn, minlength=num_rows)
    head = np.arange(100)
    assert slope(np.log(head + 1), np.log(counts[head])) == pytest.approx(-exponent, abs=0.02)
    expected = zipf_probabilities(num_rows, exponent) * len(drawn)
    assert fits(counts, expected)
