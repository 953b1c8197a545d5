"""Shuffled passes over rows on disk: every row once a pass, in an order of the pass's own."""

import numpy as np
import pytest

from workloads.block_shuffle import BlockShuffledPasses


def passes_of(num_rows: int, seed: int = 3) -> BlockShuffledPasses:
    return BlockShuffledPasses(num_rows, seed, block_rows=8, blocks_a_group=4)


@pytest.mark.parametrize("num_rows", [1, 7, 8, 9, 32, 33, 100, 1000])
def test_every_row_once_a_pass_in_a_new_order(num_rows: int):
    rows = passes_of(num_rows).range(0, 3 * num_rows).reshape(3, num_rows)
    assert (np.sort(rows, axis=1) == np.arange(num_rows)).all()
    if num_rows > 8:
        assert len({tuple(one) for one in rows.tolist()}) == 3


@pytest.mark.parametrize("num", [1, 5, 64, 1000])
def test_by_position_alone(num: int):
    whole = passes_of(100).range(0, 3000)
    for first in (0, 1, 99, 100, 431, 1999):
        assert passes_of(100).range(first, num).tolist() == whole[first : first + num].tolist()
    passes = passes_of(100)
    jumps = [passes.range(first, num) for first in (950, 3, 433, 3)]
    assert jumps[1].tolist() == jumps[3].tolist() == whole[3 : 3 + num].tolist()


def test_other_seeds_have_other_orders():
    assert passes_of(100, seed=4).range(0, 100).tolist() != passes_of(100).range(0, 100).tolist()


def test_neighbours_are_read_from_few_blocks_all_over_the_file():
    num_rows, group = 10_000, 32
    rows = passes_of(num_rows).range(0, num_rows)
    groups = rows[: num_rows // group * group].reshape(-1, group)
    assert all(len(set((own // 8).tolist())) == 4 for own in groups)
    # The mean of a group's rows: spread as the mean of four random blocks is, not as neighbours are.
    means = groups.mean(axis=1) / num_rows
    assert abs(means.std() - np.sqrt(1 / 12 / 4)) < 0.02
    inside = groups[0] - groups[0].min()
    assert (np.diff(inside) < 0).any()
