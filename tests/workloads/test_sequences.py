"""Batches of users: every user once a pass, and randomness by (seed, step, user) alone."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.workloads.batches import histories_of, plain, rows_of, samples_of
from tests.workloads.statistics import fits
from workloads.configs import InteractionsConfig
from workloads.interface import SequenceBatch
from workloads.models.configs import HstuConfig
from workloads.sequences import SequenceWorkload, ShuffledPasses

LENGTHS = [1, 2, 3, 5, 8, 13, 21, 34, 4, 4, 1]
NUM_ITEMS = 40


def create(
    batch_size: int = 3, *, seed: int = 5, num_workers: int = 1, lengths: list[int] = LENGTHS
) -> SequenceWorkload:
    return SequenceWorkload(
        "test",
        histories_of(lengths, NUM_ITEMS),
        InteractionsConfig(batch_size=batch_size),
        HstuConfig(max_length=6, num_negatives=4),
        lambda num_rows, seed: nn.Linear(num_rows[0], seed),
        seed=seed,
        num_workers=num_workers,
    )


def take(workload: SequenceWorkload, num: int, *, rank: int = 0, num_workers: int = 1) -> list[SequenceBatch]:
    return list(itertools.islice(workload.batches(rank=rank, num_workers=num_workers), num))


def test_a_sample_is_the_most_recent_items_in_order():
    workload = create(batch_size=len(LENGTHS))
    (batch,) = take(workload, 1)
    histories = workload.histories
    for user, items, times, negatives in zip(
        batch.sample_ids.tolist(),
        rows_of(batch.sparse_features, "item"),
        rows_of(batch.context, "timestamp"),
        rows_of(batch.sparse_features, "negative"),
        strict=True,
    ):
        own = slice(histories.offsets[user], histories.offsets[user + 1])
        assert items == histories.items[own].tolist()[-6:]
        assert times == histories.timestamps_s[own].tolist()[-6:]
        assert len(negatives) == 4
    assert sorted(batch.sample_ids.tolist()) == list(range(len(LENGTHS)))
    assert batch.sparse_features.values().dtype == batch.sparse_features.lengths().dtype == torch.int64
    assert batch.context is not None
    assert batch.context.stride() == batch.sparse_features.stride() == len(LENGTHS)


def test_every_user_once_a_pass_in_a_new_order():
    num_users = len(LENGTHS)
    users = [user for batch in take(create(), num_users * 3) for user in batch.sample_ids.tolist()]
    passes = [users[start : start + num_users] for start in range(0, len(users), num_users)]
    assert len(passes) == 9
    assert all(sorted(one) == list(range(num_users)) for one in passes)
    assert len({tuple(one) for one in passes}) == 9


def test_equal_for_equal_seed_step_and_rank_else_different():
    first = [plain(batch) for batch in take(create(), 9, rank=1, num_workers=2)]
    assert first == [plain(batch) for batch in take(create(), 9, rank=1, num_workers=2)]
    resumed = create().batches(rank=1, num_workers=2, start_step=7)
    assert [plain(next(resumed)), plain(next(resumed))] == first[7:]
    for other in (take(create(seed=6), 9, rank=1, num_workers=2), take(create(), 9, num_workers=2)):
        assert all(plain(theirs) != ours for theirs, ours in zip(other, first, strict=True))


def test_global_batch_does_not_depend_on_the_workers():
    """Also where a global batch spans two passes or more than one whole pass."""
    for share, num_workers in ((1, 4), (2, 3), (5, 4)):
        whole = take(create(share * num_workers), 8)
        parts = [take(create(share), 8, rank=r, num_workers=num_workers) for r in range(num_workers)]
        for step, batch in enumerate(whole):
            users = [user for part in parts for user in part[step].sample_ids.tolist()]
            assert users == batch.sample_ids.tolist()
            together: dict[int, object] = {}
            for part in parts:
                together |= samples_of(part[step])
            assert together == samples_of(batch)


def test_negatives_change_with_step_and_user_and_are_uniform():
    workload = create(batch_size=len(LENGTHS))
    seen: dict[tuple[int, int], list[int]] = {}
    for step, batch in enumerate(take(workload, 400)):
        rows = rows_of(batch.sparse_features, "negative")
        seen |= {(step, user): row for user, row in zip(batch.sample_ids.tolist(), rows, strict=True)}
    drawn = np.array(list(seen.values())).reshape(-1)
    assert 0 <= drawn.min() <= drawn.max() < NUM_ITEMS
    assert fits(np.bincount(drawn, minlength=NUM_ITEMS))
    assert len({tuple(row) for row in seen.values()}) > 0.99 * len(seen)


def test_seeds_differ_between_samples_and_steps():
    batches = take(create(batch_size=len(LENGTHS)), 50)
    seeds = [seed for batch in batches if batch.seeds is not None for seed in batch.seeds.tolist()]
    assert len(set(seeds)) == len(seeds) == 50 * len(LENGTHS)


@pytest.mark.parametrize(
    ("num_users", "num_workers", "expected"),
    [(11, 1, 11), (11, 2, 5), (11, 20, 1), (1000, 2, 64), (100, 2, 50)],
)
def test_default_batch_size_fits_the_users(num_users: int, num_workers: int, expected: int):
    workload = create(0, num_workers=num_workers, lengths=[2] * num_users)
    assert workload.batch_size == expected


def test_a_batch_longer_than_several_passes():
    positions = np.arange(5, 40)
    passes = ShuffledPasses(6, seed=1)
    expected = np.concatenate([ShuffledPasses(6, seed=1).at(np.arange(p, p + 6)) for p in range(0, 42, 6)])
    assert passes.at(positions).tolist() == expected[positions].tolist()
