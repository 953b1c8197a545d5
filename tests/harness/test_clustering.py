"""The comparison of clusterings: contestants, the bound that none may beat, means and the command."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from harness.clustering.bound import least_rows
from harness.clustering.comparison import BOUND, compare, features_to_count, mean_of
from harness.clustering.contestants import CONTESTANTS, ENGINE, RANDOM
from harness.clustering.counted_swaps import _Counter
from harness.clustering_command import clustering
from nestpipe.clustering import pair_growing_order
from nestpipe.shared_keys import SharedKeys
from tests.nestpipe.key_batches import jagged, rows_by_sets, sets_of, topics
from workloads import registry
from workloads.interface import Workload


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """What is compared runs beside training, on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_batch(num_samples: int, num_ids: int, seed: int) -> SharedKeys:
    random = np.random.default_rng(seed)
    ids = [
        random.integers(0, num_ids, int(random.integers(0, 8))) ** 2 // num_ids for _ in range(num_samples)
    ]
    return SharedKeys.of(jagged({"a": ids}))


@pytest.mark.parametrize("sizes", [[2, 2, 2], [3, 3], [1, 2, 3], [5, 1], [1] * 6, [6, 0], [4, 0, 2]])
def test_no_order_asks_for_fewer_rows_than_the_bound(sizes: list[int]) -> None:
    orders = [np.array(order) for order in itertools.permutations(range(6))]
    for seed in range(4):
        for num_ids in (3, 8, 30):
            shared = random_batch(6, num_ids, seed)
            fewest = min(shared.num_rows(order, sizes) for order in orders)
            assert shared.num_unique <= least_rows(shared, sizes) <= fewest + 1e-3


def test_the_bound_is_reached_where_it_can_be() -> None:
    alike = SharedKeys.of(jagged({"a": [[1, 2, 3]] * 12}))
    assert least_rows(alike, [4, 4, 4]) == 9
    assert least_rows(alike, [7, 5]) == 6
    # Every two samples have a key of their own: whatever the order, few keys are saved.
    pairs = list(itertools.combinations(range(12), 2))
    ids = [[number for number, pair in enumerate(pairs) if sample in pair] for sample in range(12)]
    all_pairs = SharedKeys.of(jagged({"a": ids}))
    assert least_rows(all_pairs, [3] * 4) == pytest.approx(all_pairs.num_rows(np.arange(12), [3] * 4))


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_contestant_gives_a_permutation(name: str) -> None:
    for num_samples in (0, 1, 2, 17):
        for num_ids in (1, 40):
            shared = random_batch(num_samples, num_ids, seed=num_samples)
            for sizes in ([num_samples, 0], [num_samples - num_samples // 3, num_samples // 3]):
                order = CONTESTANTS[name](shared, sizes)
                assert sorted(order.tolist()) == list(range(num_samples))
                assert order.tolist() == CONTESTANTS[name](shared, sizes).tolist()


@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name != RANDOM])
def test_every_contestant_finds_some_of_what_was_planted(name: str) -> None:
    sizes = [8] * 12
    features, _ = topics(sizes, num_keys=16)
    shared = SharedKeys.of(features)
    rows = {each: shared.num_rows(CONTESTANTS[each](shared, sizes), sizes) for each in (name, RANDOM)}
    least = least_rows(shared, sizes)
    assert least <= rows[name]
    assert rows[name] - least < 0.9 * (rows[RANDOM] - least)


def test_counted_swaps_count_the_keys_that_others_have() -> None:
    sizes = [7, 3, 10]
    features = jagged({"a": [np.random.default_rng(s).integers(0, 30, s % 6) for s in range(20)]})
    shared = SharedKeys.of(features)
    sets, order = sets_of(features), np.random.default_rng(0).permutation(20)
    parts = np.split(order, np.cumsum(sizes)[:-1])
    company = _Counter.of(shared).company(order, sizes)
    for sample, (number, part) in itertools.product(range(20), enumerate(parts)):
        others = set().union(*(sets[other] for other in part if other != sample))
        assert company[sample, number] == len(sets[sample] & others)


def test_counted_swaps_ask_for_fewer_rows() -> None:
    saved = 0
    for seed in range(4):
        shared, sizes = random_batch(128, 300, seed), [32] * 4
        counted = CONTESTANTS["counted swaps"](shared, sizes)
        saved += shared.num_rows(pair_growing_order(shared, sizes), sizes) - shared.num_rows(counted, sizes)
        assert saved >= 0
    assert saved > 0


@pytest.mark.parametrize(("num", "quantile"), [(5, 2.7764), (10, 2.2622), (50, 2.0096)])
def test_the_bound_of_a_mean_is_students(num: int, quantile: float) -> None:
    values = np.random.default_rng(num).random(num)
    found = mean_of(values.tolist())
    assert found.mean == pytest.approx(values.mean())
    assert found.bound == pytest.approx(quantile * values.std(ddof=1) / np.sqrt(num), rel=4e-3)


def workload(name: str, cache_dir: Path, **settings: str) -> Workload:
    return registry.create(name, settings, seed=0, num_workers=1, cache_dir=cache_dir)


def test_inflation_is_counted_per_batch_and_averaged(tmp_path: Path) -> None:
    synthetic = workload("synthetic", tmp_path, preset="tiny", batch_size="24", num_tables="2")
    outcomes = {
        outcome.algorithm: outcome for outcome in compare("s", synthetic, num_batches=5, micro_batches=[5])
    }
    assert list(outcomes) == [*CONTESTANTS, BOUND]
    expected = []
    for batch in itertools.islice(synthetic.batches(rank=0, num_workers=1), 5):
        order = CONTESTANTS[RANDOM](SharedKeys.of(batch.sparse_features), [])
        sets = sets_of(batch.sparse_features)
        sizes = [5, 5, 4, 5, 5]
        expected.append(rows_by_sets(sets, order, sizes) / len(set().union(*sets)))
    assert outcomes[RANDOM].inflation == mean_of(expected)
    random, ours, bound = (outcomes[name] for name in (RANDOM, ENGINE, BOUND))
    assert random.removed is not None
    assert (random.removed.mean, random.removed.bound, random.cpu_ms) == (0.0, 0.0, None)
    assert ours.removed is not None
    assert bound.removed is not None
    assert 0 < ours.removed.mean < bound.removed.mean
    assert ours.cpu_ms is not None
    assert ours.cpu_ms > 0


def test_negatives_count_only_where_they_are_asked_for() -> None:
    features = jagged({"item": [[1, 2], [3]], "negative": [[3], [4]], "user": [[1], [1]]})
    left = features_to_count(features, with_negatives=False)
    assert list(left.keys()) == ["item", "user"]
    assert left.values().tolist() == [1, 2, 3, 1, 1]
    assert left.lengths().tolist() == [2, 1, 1, 1]
    assert list(features_to_count(features, with_negatives=True).keys()) == ["item", "negative", "user"]


@pytest.mark.parametrize("size", [16, 64])
def test_half_of_the_inflation_goes_where_users_have_one_interest(size: int, tmp_path: Path) -> None:
    industrial = workload("industrial", tmp_path, preset="one-interest")
    sizes = [size] * (industrial.batch_size // size)
    removed = []
    for batch in itertools.islice(industrial.batches(rank=0, num_workers=1), 5):
        shared = SharedKeys.of(batch.sparse_features)
        random, ours = (shared.num_rows(CONTESTANTS[name](shared, sizes), sizes) for name in (RANDOM, ENGINE))
        removed.append((random - ours) / (random - shared.num_unique))
    found = mean_of(removed)
    assert found.mean - found.bound > 0.5


def test_the_command_prints_a_table_and_one_line_of_json(tmp_path: Path) -> None:
    arguments = ["synthetic:tiny", "--samples", "16", "--micro-batch", "4", "--micro-batch", "8"]
    done = CliRunner().invoke(clustering, [*arguments, "--batches", "5", "--cache", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert [each["micro_batch"] for each in found["outcomes"]] == [4] * 8 + [8] * 8
    for outcome in found["outcomes"]:
        assert f"{outcome['inflation']['mean']:.3f} ± {outcome['inflation']['bound']:.3f}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sinthetic"], "did you mean 'synthetic'"),
        (["synthetic:tiny", "--samples", "8", "--micro-batch", "8"], "choose a smaller --micro-batch"),
        (["synthetic:tiny", "--set", "num_row=3"], "did you mean 'num_rows'"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(clustering, [*arguments, "--batches", "5", "--cache", str(tmp_path)])
    assert done.exit_code == 1
    assert message in done.output
