"""Cutting batches and putting outputs back together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from nestpipe.batching import cut_sizes, features_of, merge_outputs, select_samples, split_batch
from nestpipe.clustering import key_centric_order
from tests.nestpipe.models import Data


@pytest.mark.parametrize(
    ("num_samples", "cuts", "expected"),
    [
        (8, (1,) * 4, [2, 2, 2, 2]),
        (10, (1,) * 4, [2, 3, 3, 2]),
        (3, (1,) * 8, [0, 1, 0, 0, 1, 0, 1, 0]),
        (0, (1, 1), [0, 0]),
        (22, (1, 2, 4, 4, 4, 4, 2, 1), [1, 2, 4, 4, 4, 4, 2, 1]),
    ],
)
def test_cut_sizes(num_samples: int, cuts: tuple[int, ...], expected: list[int]) -> None:
    sizes = cut_sizes(num_samples, cuts)
    assert sum(sizes) == num_samples
    assert len(sizes) == len(cuts)
    if num_samples != 3:
        assert sizes == expected


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[torch.Tensor]


@dataclass
class Nested:
    sparse_features: KeyedJaggedTensor
    pair: Pair
    jagged: JaggedTensor
    named: dict[str, torch.Tensor]
    constant: torch.Tensor
    text: str


def _jagged_rows(keys: KeyedJaggedTensor, feature: str) -> list[list[int]]:
    part = keys[feature]
    return [ids.tolist() for ids in part.values().split(part.lengths().tolist())]


def test_select_samples_of_a_nest() -> None:
    lengths = torch.tensor([2, 0, 1, 3, 1, 1])
    keys = KeyedJaggedTensor(["a", "b"], torch.arange(8), torch.rand(8), lengths)
    x = torch.arange(3.0)
    batch = Nested(
        keys,
        Pair(x, [x + 1]),
        JaggedTensor(torch.arange(4), lengths=torch.tensor([1, 0, 3])),
        {"x": x},
        torch.ones(2),
        "t",
    )
    part = select_samples(batch, torch.tensor([2, 0]), 3)
    assert _jagged_rows(part.sparse_features, "a") == [[2], [0, 1]]
    assert _jagged_rows(part.sparse_features, "b") == [[7], [3, 4, 5]]
    assert torch.equal(part.sparse_features.weights(), keys.weights()[[2, 0, 1, 7, 3, 4, 5]])
    assert part.pair.x.tolist() == [2, 0]
    assert part.pair.y[0].tolist() == [3, 1]
    assert part.jagged.lengths().tolist() == [3, 1]
    assert part.jagged.values().tolist() == [1, 2, 3, 0]
    assert part.named["x"].tolist() == [2, 0]
    assert part.constant is batch.constant
    assert part.text == "t"


def test_micro_batches_hold_every_sample_once() -> None:
    batch = Data(num_samples=13).batch(0, 0, 1)
    parts, order = split_batch(batch, features_of, (1, 3, 1), key_centric_order, None)
    assert order is not None
    assert sorted(order.tolist()) == list(range(13))
    assert torch.equal(torch.cat([p.batch.labels for p in parts]), batch.labels[order])
    assert sum(p.weight for p in parts) == pytest.approx(1.0)
    for feature in batch.sparse_features.keys():  # noqa: SIM118
        rows = _jagged_rows(batch.sparse_features, feature)
        found = [r for p in parts for r in _jagged_rows(p.features, feature)]
        assert found == [rows[i] for i in order.tolist()]


def test_one_micro_batch_is_the_batch_itself() -> None:
    batch = Data().batch(0, 0, 1)
    parts, order = split_batch(batch, features_of, (1,), key_centric_order, None)
    assert parts[0].batch is batch
    assert order is None


def test_loss_weight_of_a_batch() -> None:
    @dataclass
    class Weighted:
        sparse_features: KeyedJaggedTensor
        loss_weight: torch.Tensor

    keys = KeyedJaggedTensor(["a"], torch.arange(4), lengths=torch.ones(4, dtype=torch.int64))
    parts, _ = split_batch(Weighted(keys, torch.tensor([1.0, 2, 3, 4])), features_of, (1, 1), None, None)
    assert [p.weight for p in parts] == pytest.approx([0.3, 0.7])


def test_outputs_come_back_in_the_order_of_the_batch() -> None:
    order = torch.tensor([2, 0, 3, 1])
    outputs = [(order[:1] * 1.0, {"y": order[:1] + 10}), (order[1:] * 1.0, {"y": order[1:] + 10})]
    x, named = merge_outputs(outputs, [1, 3], order)
    assert x.tolist() == [0, 1, 2, 3]
    assert named["y"].tolist() == [10, 11, 12, 13]


def test_outputs_that_are_not_one_a_sample_stay_a_list() -> None:
    merged = merge_outputs([torch.tensor(1.0), torch.tensor(2.0)], [2, 2], torch.arange(4))
    assert [float(value) for value in merged] == [1.0, 2.0]


def test_a_batch_without_features_is_named() -> None:
    with pytest.raises(TypeError, match="type dict has no `sparse_features`"):
        features_of({})


def test_clustering_puts_samples_with_common_keys_together() -> None:
    generator = torch.Generator().manual_seed(0)
    num_topics, per_topic, tokens = 8, 16, 20
    topics = torch.arange(num_topics).repeat_interleave(per_topic)[
        torch.randperm(num_topics * per_topic, generator=generator)
    ]
    ids = topics.unsqueeze(1) * 50 + torch.randint(0, 50, (len(topics), tokens), generator=generator)
    keys = KeyedJaggedTensor(["a"], ids.view(-1), lengths=torch.full((len(topics),), tokens))
    order = key_centric_order(keys, [per_topic] * num_topics)
    assert sorted(order.tolist()) == list(range(len(topics)))

    def num_unique(samples: torch.Tensor) -> int:
        return sum(int(ids[part].unique().numel()) for part in samples.split(per_topic))

    least = int(ids.unique().numel())
    unsorted = num_unique(torch.arange(len(topics)))
    assert num_unique(order) - least < 0.5 * (unsorted - least)


@pytest.mark.parametrize("lengths", [[0, 0, 0], [1, 0, 2]])
def test_clustering_of_little(lengths: list[int]) -> None:
    keys = KeyedJaggedTensor(
        ["a"], torch.zeros(sum(lengths), dtype=torch.int64), lengths=torch.tensor(lengths)
    )
    assert sorted(key_centric_order(keys, [1, 2]).tolist()) == [0, 1, 2]
