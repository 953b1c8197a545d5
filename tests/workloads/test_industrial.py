"""Industrial-like samples: functions of (seed, sample id, step), with skew, interests and drift."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workloads.batches import plain, rows_of, samples_of
from tests.workloads.statistics import distance, normal_cdf
from workloads import registry
from workloads.configs import INDUSTRIAL_CONTEXTS
from workloads.industrial import Industrial
from workloads.interface import SequenceBatch

CPU = torch.device("cpu")
SMALL = {"num_items": "3000", "num_users": "200", "batch_size": "12", "mean_length": "5", "num_contexts": "3"}


def create(settings: Mapping[str, str] | None = None, *, seed: int = 3, **more: str) -> Industrial:
    given = {**(settings or {}), **more}
    workload = registry.create("industrial", given, seed=seed, num_workers=2, cache_dir=Path("/unused"))
    assert isinstance(workload, Industrial)
    return workload


def take(workload: Industrial, num: int, *, rank: int = 0, num_workers: int = 1) -> list[SequenceBatch]:
    return list(itertools.islice(workload.batches(rank=rank, num_workers=num_workers), num))


@pytest.mark.parametrize("model", ["pooled", "hstu"])
def test_equal_for_equal_seed_step_and_rank_else_different(model: str):
    settings = {**SMALL, "model": model}
    first = [plain(batch) for batch in take(create(settings), 4, rank=1, num_workers=2)]
    assert first == [plain(batch) for batch in take(create(settings), 4, rank=1, num_workers=2)]
    resumed = create(settings).batches(rank=1, num_workers=2, start_step=3)
    assert plain(next(resumed)) == first[3]
    others = [
        *first[1:],
        plain(take(create(settings), 1, rank=0, num_workers=2)[0]),
        plain(take(create(settings, seed=4), 1, rank=1, num_workers=2)[0]),
    ]
    for feature in first[0]["sparse_features"]:
        assert all(
            other["sparse_features"][feature] != first[0]["sparse_features"][feature] for other in others
        )


@pytest.mark.parametrize("model", ["pooled", "sasrec"])
def test_global_batch_does_not_depend_on_the_workers(model: str):
    whole = create(SMALL, model=model)
    parts = create({**SMALL, "batch_size": "4"}, model=model)
    for step, batch in enumerate(take(whole, 3)):
        shares = [samples_of(take(parts, 3, rank=rank, num_workers=3)[step]) for rank in range(3)]
        assert samples_of(batch) == shares[0] | shares[1] | shares[2]
        assert len(samples_of(batch)) == 12


def test_click_batches():
    (batch,) = take(create(SMALL), 1)
    features = batch.sparse_features
    contexts = dict(list(INDUSTRIAL_CONTEXTS.items())[:3])
    assert features.keys() == ["item", "user", *contexts]
    assert features.stride() == 12
    assert features.values().dtype == features.lengths().dtype == batch.sample_ids.dtype == torch.int64
    for key, num_rows in {"item": 3000, "user": 200, **contexts}.items():
        values = features[key].values()
        assert 0 <= int(values.min()) <= int(values.max()) < num_rows
        assert key == "item" or features[key].lengths().tolist() == [1] * 12
    assert batch.context is None
    assert set(batch.labels.tolist()) == {0.0, 1.0}


def test_sequence_batches():
    workload = create(SMALL, model="hstu", max_length="6", num_negatives="9", sigma="1.0", hash_rows="70")
    first, second = take(workload, 2)
    features = first.sparse_features
    assert features.keys() == ["item", "negative", "user", *list(INDUSTRIAL_CONTEXTS)[:3]]
    lengths = features["item"].lengths()
    assert int(lengths.min()) < int(lengths.max()) == 6
    assert features["negative"].lengths().tolist() == [9] * 12
    for key in ("item", "negative"):
        assert 0 <= int(features[key].values().min()) <= int(features[key].values().max()) < 70
    assert first.context is not None
    assert second.context is not None
    assert first.context["timestamp"].lengths().tolist() == lengths.tolist()
    ends = set()
    for times in rows_of(first.context, "timestamp"):
        assert times == sorted(times)
        ends |= set(times[-1:])
    (end,) = ends
    assert max(max(times, default=0) for times in rows_of(second.context, "timestamp")) == end + 60


@pytest.mark.parametrize("model", ["pooled", "dlrm", "hstu", "fuxi", "sasrec"])
def test_every_model_trains_on_it(model: str):
    workload = create(SMALL, model=model, hash_rows="500", embedding_dim="16")
    trained = workload.model(CPU)
    (batch,) = take(workload, 1)
    loss, output = trained(batch)
    loss.backward()
    assert output.shape[0] == 12
    # Every table is read: the items', the users' and the three contexts'.
    rows = {
        tuple(p.shape): float(p.grad.abs().sum())
        for name, p in trained.named_parameters()
        if p.grad is not None and "embedding" in name and p.dim() == 2
    }
    assert all((num_rows, 16) in rows and rows[num_rows, 16] > 0 for num_rows in (500, 200, 168, 16, 64))


def test_lengths_are_log_normal_around_the_mean():
    workload = create({**SMALL, "batch_size": "20000", "mean_length": "40", "sigma": "0.8"})
    lengths = take(workload, 1)[0].sparse_features["item"].lengths().numpy()
    spread = 40 * np.sqrt(np.exp(0.8**2) - 1)
    assert lengths.mean() == pytest.approx(40, abs=4 * spread / np.sqrt(len(lengths)))
    smooth = lengths + np.random.default_rng(0).uniform(-0.5, 0.5, size=len(lengths))
    deviates = (np.log(np.maximum(smooth, 0.1)) - np.log(40) + 0.32) / 0.8
    assert distance(deviates, normal_cdf) < 0.015


@pytest.mark.parametrize("topics_a_user", [1, 4])
def test_users_have_topics_of_their_own(topics_a_user: int):
    num_topics, own_share = 32, 0.6
    workload = create(
        num_items="6400",
        num_users="50",
        mean_length="50",
        exponent="0.7",
        drift="0",
        num_topics=str(num_topics),
        topics_a_user=str(topics_a_user),
        own_share=str(own_share),
        num_contexts="0",
    )
    rank_of = np.argsort(workload._items.items_at(np.arange(6400), step=0))
    (batch,) = take(workload, 1)
    by_user: dict[int, list[int]] = {}
    for (user,), items in zip(
        *(rows_of(batch.sparse_features, key) for key in ("user", "item")), strict=True
    ):
        by_user.setdefault(user, []).extend((rank_of[items] % num_topics).tolist())
    hits = total = expected = 0.0
    for user, topics in by_user.items():
        own = workload._items.topics_of(np.full(topics_a_user, user), np.arange(topics_a_user)).tolist()
        hits += sum(topic in own for topic in topics)
        total += len(topics)
        expected += len(topics) * (own_share + (1 - own_share) * len(set(own)) / num_topics)
    # Topics of low numbers hold the hottest ranks, so everybody's draws hit topics not quite equally.
    assert hits / total == pytest.approx(expected / total, abs=0.03)


def test_topics_are_zipf_inside():
    settings = {**SMALL, "batch_size": "4000", "own_share": "1", "num_topics": "4", "drift": "0"}
    workload = create(settings, exponent="1")
    (batch,) = take(workload, 1)
    rank_of = np.argsort(workload._items.items_at(np.arange(3000), step=0))
    ranks = rank_of[batch.sparse_features["item"].values().numpy()] // 4
    counts = np.bincount(ranks, minlength=750)
    harmonic = (1 / np.arange(1, 751)).sum()
    expected = len(ranks) / harmonic / np.arange(1, 751)
    assert len(counts) == 750
    np.testing.assert_allclose(counts[:20], expected[:20], atol=4 * np.sqrt(expected[0]), rtol=0.1)


@pytest.mark.parametrize("drift", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_drift_is_the_share_that_is_replaced_at_each_step(drift: float):
    draws = create(num_items="1000000", drift=str(drift))._items
    ranks = np.arange(20_000)
    for step in (0, 7, 1_000):
        replaced = (draws.items_at(ranks, step) != draws.items_at(ranks, step + 1)).mean()
        assert replaced == pytest.approx(drift, abs=0.015)
    # A rank has one item at a step, and but for few chances an item has one rank.
    assert len(np.unique(draws.items_at(ranks, 3))) > 0.97 * len(ranks)


def test_drift_controls_the_overlap_and_some_items_last():
    def overlap(drift: str, gap: int) -> float:
        workload = create(drift=drift, num_contexts="0")
        first, later = (
            np.unique(
                next(workload.batches(rank=0, num_workers=1, start_step=step))
                .sparse_features["item"]
                .values()
            )
            for step in (0, gap)
        )
        return len(np.intersect1d(first, later)) / len(first)

    by_drift = [overlap(drift, 1) for drift in ("0", "0.3", "0.6", "0.9")]
    assert by_drift == sorted(by_drift, reverse=True)
    for drift, found in zip((0.3, 0.6, 0.9), by_drift[1:], strict=True):
        assert found == pytest.approx((1 - drift) * by_drift[0], abs=0.03)
    # Were all items replaced at one rate, 0.6 ** 8 = 1.7 % of the hot ones would last for 8 steps.
    assert overlap("0.4", 8) > 5 * 0.6**8 * by_drift[0]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Many small operations: threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_clicks_can_be_learnt():
    workload = create(
        num_items="100", num_topics="4", num_users="20", num_contexts="1", mean_length="5", drift="0"
    )
    model = workload.model(CPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for batch in take(workload, 60):
        loss, _ = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[:3]) > 0.68
    assert np.mean(losses[-5:]) < 0.63


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_live": "2000000"}, "num_live=2000000: expected 0 to num_items=1000000"),
        ({"hash_rows": "-1"}, "hash_rows=-1"),
        ({"num_topics": "9", "num_live": "8"}, "num_topics=9: expected at most the 8 live items"),
        ({"topic_items": "7813"}, "topic_items=7813: expected 0 to 7812"),
        ({"own_share": "1.1"}, "own_share=1.1: expected 0 to 1"),
        ({"drift": "-0.1"}, "drift=-0.1: expected 0 to 1"),
        ({"num_contexts": "9"}, "num_contexts=9: expected 0 to 8"),
        ({"preset": "meta"}, "did you mean 'meta-like'"),
    ],
)
def test_mistakes_are_named(settings: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        create(settings)


def test_a_large_batch_costs_less_than_forty_milliseconds():
    batches = create(preset="several-interests").batches(rank=0, num_workers=1)
    costs_ms = []
    for _ in range(10):
        start = time.thread_time()
        batch = next(batches)
        costs_ms.append(1e3 * (time.thread_time() - start))
    assert batch.sparse_features["item"].values().numel() == 512 * 256
    # Processor time and the least of many, as whatever else runs on the machine only adds.
    assert min(costs_ms) < 40.0
