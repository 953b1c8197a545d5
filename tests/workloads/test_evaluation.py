"""What is held out, what is trained on, and a model's evaluation from end to end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from nestpipe import SGD, NestPipe
from tests.distributed import run_workers
from tests.workloads.batches import histories_of, in_full_precision, plain, rows_of
from tests.workloads.test_sequences import LENGTHS, NUM_ITEMS, create
from workloads import registry
from workloads.configs import InteractionsConfig
from workloads.interface import Evaluable, EvaluationResult, SequenceBatch, SideTable
from workloads.sequences import SequenceWorkload, SideFeature
from workloads.synthetic import NUM_HELD_OUT, Synthetic

MAX_LENGTH = 6


def taken(batches: Iterator[SequenceBatch], num: int) -> list[SequenceBatch]:
    return list(itertools.islice(batches, num))


def history_of(workload: SequenceWorkload, user: int) -> tuple[list[int], list[int]]:
    """Items and times of a user, the last item included."""
    histories = workload.histories
    own = slice(histories.offsets[user], histories.offsets[user + 1])
    return histories.items[own].tolist(), histories.timestamps_s[own].tolist()


@pytest.mark.parametrize("num_workers", [1, 3])
def test_every_held_out_item_once_over_all_workers(num_workers: int):
    workload = create(batch_size=2)
    assert isinstance(workload, Evaluable)
    shares = [
        list(workload.evaluation_batches(rank=rank, num_workers=num_workers)) for rank in range(num_workers)
    ]
    users = [user for share in shares for batch in share for user in batch.sample_ids.tolist()]
    assert sorted(users) == [user for user, length in enumerate(LENGTHS) if length >= 2]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for batch in itertools.chain(*shares):
        assert batch.labels.dtype == torch.int64
        assert batch.context is not None
        assert rows_of(batch.sparse_features, "negative") == [[]] * len(batch.sample_ids)
        for user, items, times, label in zip(
            batch.sample_ids.tolist(),
            rows_of(batch.sparse_features, "item"),
            rows_of(batch.context, "timestamp"),
            batch.labels.tolist(),
            strict=True,
        ):
            all_items, all_times = history_of(workload, user)
            assert (items, times) == (all_items[:-1][-MAX_LENGTH:], all_times[:-1][-MAX_LENGTH:])
            assert label == all_items[-1]


def test_training_differs_from_whole_histories_by_what_is_held_out():
    workload = create(batch_size=2)
    whole = taken(workload.batches(rank=1, num_workers=2), 9)
    training = taken(workload.training_batches(rank=1, num_workers=2), 9)
    for all_of_it, part in zip(whole, training, strict=True):
        lists, others = plain(part), plain(all_of_it)
        for user, items, times in zip(
            lists["sample_ids"], lists["sparse_features"]["item"], lists["context"]["timestamp"], strict=True
        ):
            all_items, all_times = history_of(workload, user)
            num_left = max(len(all_items) - 1, 1)
            assert items == all_items[:num_left][-MAX_LENGTH:]
            assert times == all_times[:num_left][-MAX_LENGTH:]
        for changed in (lists, others):
            del changed["sparse_features"]["item"], changed["context"]
        assert lists == others


def test_epochs():
    workload = create(batch_size=2)
    assert [workload.num_steps_an_epoch(num_workers) for num_workers in (1, 2, 3, 9)] == [6, 3, 2, 1]
    shares = [taken(workload.training_batches(rank=rank, num_workers=2), 3) for rank in range(2)]
    users = [user for share in shares for batch in share for user in batch.sample_ids.tolist()]
    assert len(users) == 12
    assert set(users) == set(range(len(LENGTHS)))
    run = taken(workload.training_batches(rank=1, num_workers=2), 8)
    resumed = taken(workload.training_batches(rank=1, num_workers=2, start_epoch=2), 2)
    assert [plain(batch) for batch in resumed] == [plain(batch) for batch in run[6:]]


def test_side_features_follow_users_and_items():
    asked = []

    def build(num_rows: list[int], seed: int, sides: list[SideTable]) -> nn.Module:
        asked.append((num_rows, sides))
        return nn.Linear(1, 1)

    age, genre = SideTable("age", 5), SideTable("genre", 9, per_token=True)
    ages, genres = np.arange(len(LENGTHS)) % 5, np.arange(NUM_ITEMS) % 9
    config = registry.MODELS["hstu"].config(max_length=MAX_LENGTH, num_negatives=4)
    workload = SequenceWorkload(
        "test",
        histories_of(LENGTHS, NUM_ITEMS),
        InteractionsConfig(batch_size=3),
        config,
        build,
        seed=5,
        num_workers=1,
        sides=[SideFeature(age, ages), SideFeature(genre, genres)],
    )
    workload.model(torch.device("cpu"))
    assert asked == [([NUM_ITEMS], [age, genre])]
    training = taken(workload.training_batches(rank=0, num_workers=1), 5)
    for batch in [*training, *workload.evaluation_batches(rank=0, num_workers=1)]:
        items = rows_of(batch.sparse_features, "item")
        assert rows_of(batch.sparse_features, "age") == [[user % 5] for user in batch.sample_ids.tolist()]
        assert rows_of(batch.sparse_features, "genre") == [[item % 9 for item in row] for row in items]


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """A file of few ratings by six users."""
    lines = []
    for user, length in enumerate([1, 2, 3, 9, 14, 5]):
        lines += [f"{user}::{(7 * user + 3 * place) % 19}::4::{1000 + place}\n" for place in range(length)]
    path = tmp_path / "ratings.dat"
    path.write_text("".join(lines))
    return path


def movielens(ratings: Path, model: str) -> SequenceWorkload:
    settings = {"path": str(ratings), "model": model, "batch_size": "3"}
    settings |= {"max_length": "6", "embedding_dim": "8"}
    cache_dir = ratings.parent / "cache"
    workload = registry.create("movielens", settings, seed=1, num_workers=1, cache_dir=cache_dir)
    assert isinstance(workload, SequenceWorkload)
    return workload


def rows_and_evaluation(
    workload: SequenceWorkload, module: nn.Module
) -> tuple[torch.Tensor, EvaluationResult]:
    """The item table, and the evaluation of an unsharded model."""
    rows = dict(module.named_parameters())["embedding_collection.embeddings.item.weight"].detach()
    batches = workload.evaluation_batches(rank=0, num_workers=1)
    results = ((batch, *module(batch)) for batch in batches)
    return rows, workload.evaluate(results, lambda table: iter([(torch.arange(len(rows)), rows)]), None)


@torch.no_grad()
@pytest.mark.parametrize("model", registry.WORKLOADS["movielens"].models)
def test_a_model_is_evaluated_from_end_to_end(ratings: Path, model: str):
    """Against one user at a time, each with the state that the model gives it alone."""
    workload = movielens(ratings, model)
    module = workload.model(torch.device("cpu")).eval()
    rows, result = rows_and_evaluation(workload, module)
    expected = {}
    workload.batch_size = 1
    for batch in workload.evaluation_batches(rank=0, num_workers=1):
        (user,) = batch.sample_ids.tolist()
        items, _ = history_of(workload, user)
        scores = torch.cosine_similarity(module(batch)[1].double(), rows.double())
        offered = [item for item in range(len(rows)) if item == items[-1] or item not in items[:-1]]
        offered.sort(key=lambda item: -float(scores[item]))
        expected[user] = offered.index(items[-1]) + 1
    assert result.sample_ids is not None
    assert result.ranks is not None
    assert dict(zip(result.sample_ids.tolist(), result.ranks.tolist(), strict=True)) == expected
    assert set(result.metrics) == {"hr@10", "hr@50", "ndcg@10", "ndcg@50", "mrr"}


def evaluate_on_engine(rank: int, num_workers: int, ratings: Path) -> EvaluationResult:
    """Five users with a batch each: the workers have different numbers of them."""
    workload = movielens(ratings, "hstu")
    workload.batch_size = 1
    model = workload.model(torch.device("cpu"), torch.float64)
    with NestPipe(
        model,
        sparse_optimizer=SGD(lr=0.1),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ) as pipeline:
        batches = workload.evaluation_batches(rank=rank, num_workers=num_workers)
        group = dist.new_group(backend="gloo")
        return workload.evaluate(pipeline.evaluate(batches), pipeline.rows_of, group)


@torch.no_grad()
def test_the_engine_ranks_as_the_unsharded_model_does(ratings: Path):
    workload = movielens(ratings, "hstu")
    module = in_full_precision(workload.model(torch.device("cpu"), torch.float64)).eval()
    _, whole = rows_and_evaluation(workload, module)
    sharded, *_ = run_workers(evaluate_on_engine, 2, ratings)
    assert whole.ranks is not None
    assert whole.top_items is not None
    assert sharded.metrics == whole.metrics
    assert torch.equal(sharded.ranks, whole.ranks)
    assert torch.equal(sharded.top_items, whole.top_items)


def test_synthetic_samples_held_out():
    workload = registry.create(
        "synthetic", {"preset": "tiny"}, seed=3, num_workers=2, cache_dir=Path("/unused")
    )
    assert isinstance(workload, Synthetic)
    assert isinstance(workload, Evaluable)
    shares = [list(workload.evaluation_batches(rank=rank, num_workers=3)) for rank in range(3)]
    held_out = torch.cat([batch.sample_ids for share in shares for batch in share])
    assert len(held_out.unique()) == len(held_out) == NUM_HELD_OUT
    last = next(workload.training_batches(rank=1, num_workers=2, start_epoch=1000))
    assert int(last.sample_ids.max()) < int(held_out.min())
    steps = workload.num_steps_an_epoch(2)
    expected = next(workload.batches(rank=1, num_workers=2, start_step=1000 * steps))
    assert plain(last) == plain(expected)
    told = ((batch, torch.zeros(()), batch.labels * 2 - 1) for batch in shares[0])
    assert workload.evaluate(told, lambda table: iter([]), None).metrics["auc"] == 1.0
