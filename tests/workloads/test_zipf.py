"""The alias table must give back exactly the probabilities that it was made of."""

import numpy as np
import pytest

from tests.workloads.statistics import fits, slope
from workloads.hashing import hash_of
from workloads.zipf import AliasTable, ZipfRanks, fit_exponent, zipf_probabilities


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


@pytest.mark.parametrize("num_rows", [1, 2, 63, 1_000])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.3, 4.0])
def test_draws_without_a_table_are_zipf(num_rows: int, exponent: float):
    drawn = ZipfRanks(num_rows, exponent).draw(hash_of(1, np.arange(400_000)))
    expected = zipf_probabilities(num_rows, exponent) * len(drawn)
    counts = np.bincount(drawn, minlength=num_rows)
    assert len(counts) == num_rows
    # Pearson's test needs some draws of each row: the rare ones are one row together.
    is_rare = expected < 10
    if num_rows > 1:
        counts = np.append(counts[~is_rare], counts[is_rare].sum())
        expected = np.append(expected[~is_rare], expected[is_rare].sum())
        assert fits(counts[expected > 0], expected[expected > 0])


@pytest.mark.parametrize("exponent", [0.9, 1.0, 1.1])
def test_draws_from_a_billion_rows(exponent: float):
    num_rows = 10**9
    drawn = ZipfRanks(num_rows, exponent).draw(hash_of(2, np.arange(200_000)).reshape(2, -1))
    assert drawn.shape == (2, 100_000)
    assert 0 <= drawn.min() <= drawn.max() < num_rows
    # The mass up to rank r by Euler and Maclaurin's formula instead of 10**9 terms.
    edges = np.array([10.0, 1e3, 1e5, 1e7, 1e9])
    head = np.cumsum(np.arange(1, 1_001, dtype=np.float64) ** -exponent)
    tail = (
        np.log(edges / 1e3)
        if exponent == 1.0
        else (edges ** (1 - exponent) - 1e3 ** (1 - exponent)) / (1 - exponent)
    )
    mass = np.where(edges <= 1e3, head[np.minimum(edges, 1e3).astype(int) - 1], head[-1] + tail)
    found = np.histogram(drawn, bins=[0.0, *edges])[0]
    assert fits(found, np.diff(mass / mass[-1], prepend=0.0) * drawn.size)


def test_few_draws_are_rejected():
    hashes = hash_of(3, np.arange(10_000))
    for exponent in (0.0, 0.5, 1.0, 2.0):
        assert ZipfRanks(10**6, exponent)._attempt(hashes)[1].mean() > 0.8


@pytest.mark.parametrize("exponent", [0.5, 0.9, 1.0, 1.2])
def test_fit_gives_the_exponent_back(exponent: float):
    drawn = ZipfRanks(100_000, exponent).draw(hash_of(4, np.arange(2_000_000)))
    counts = np.bincount(drawn, minlength=100_000)
    fitted = fit_exponent(np.random.default_rng(0).permutation(counts))
    assert fitted == pytest.approx(exponent, abs=0.02)


def test_fit_maximises_the_likelihood():
    counts = np.array([90, 41, 33, 20, 21, 14, 13, 11, 12, 10, 10, 9, 9, 1, 1])
    frequent = np.sort(counts[counts >= 10])[::-1]
    ranks = np.arange(1, len(frequent) + 1)

    def log_likelihood(s: float) -> float:
        return float((frequent * np.log(ranks**-s / (ranks**-s).sum())).sum())

    fitted = fit_exponent(counts)
    assert fitted is not None
    assert all(log_likelihood(fitted) >= log_likelihood(fitted + step) for step in (-1e-3, 1e-3))
    assert fit_exponent(counts[:9]) is None
    assert fit_exponent(np.full(50, 10)) == pytest.approx(0.0, abs=1e-9)
    assert fit_exponent(np.zeros(0, dtype=np.int64)) is None
