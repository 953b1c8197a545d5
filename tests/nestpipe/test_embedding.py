"""The drop-in modules against TorchRec's own unsharded ones: outputs, names, gradients of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from nestpipe import SGD, NestPipe, schedules

LENGTHS = torch.tensor([2, 0, 3, 1, 1, 4, 0, 0, 2, 1])
NUM_SAMPLES = 5


@dataclass
class Batch:
    """Keys alone."""

    sparse_features: KeyedJaggedTensor


def _keys(weighted: bool = False) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(0)
    count = int(LENGTHS.sum())
    weights = torch.rand(count, generator=generator) if weighted else None
    return KeyedJaggedTensor(["f", "g"], torch.randint(0, 9, (count,), generator=generator), weights, LENGTHS)


def _sequence() -> EmbeddingCollection:
    """Feature f is read by both tables, so its outputs are named f@a and f@b."""
    return EmbeddingCollection(
        tables=[
            EmbeddingConfig(name="a", num_embeddings=9, embedding_dim=4, feature_names=["f", "g"]),
            EmbeddingConfig(name="b", num_embeddings=11, embedding_dim=4, feature_names=["f"]),
        ],
        need_indices=True,
    )


def _bags(weighted: bool, pooling: PoolingType) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        is_weighted=weighted,
        tables=[
            EmbeddingBagConfig(
                name="a", num_embeddings=9, embedding_dim=4, feature_names=["f"], pooling=pooling
            ),
            EmbeddingBagConfig(
                name="b", num_embeddings=11, embedding_dim=8, feature_names=["g", "f"], pooling=pooling
            ),
            EmbeddingBagConfig(
                name="c", num_embeddings=10, embedding_dim=4, feature_names=["g"], pooling=pooling
            ),
        ],
    )


class Recording(nn.Module):
    """Keeps what its collection returns; the loss weighs every sample and element differently."""

    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.collection = collection
        self.bias = nn.Parameter(torch.zeros(()))
        self.outputs: Any = None

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        self.outputs = self.collection(batch.sparse_features)
        values = _by_name(self.outputs)
        total = sum(
            (torch.sin(v) * torch.arange(1, v.shape[1] + 1)).sum() * (i + 1)
            for i, v in enumerate(values.values())
        )
        loss = total / batch.sparse_features.stride() + self.bias
        return loss, torch.zeros(batch.sparse_features.stride())


def _by_name(outputs: Any) -> dict[str, torch.Tensor]:
    if isinstance(outputs, KeyedTensor):
        return outputs.to_dict()
    return {name: jagged.values() for name, jagged in outputs.items()}


def _train(model: Recording, keys: KeyedJaggedTensor, micro_batches: int) -> dict[str, torch.Tensor]:
    with NestPipe(
        model,
        sparse_optimizer=SGD(lr=0.5),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        schedule=schedules.fwp(micro_batches),
        clustering=None,
    ) as pipeline:
        pipeline.progress(iter([Batch(keys)]))
        return pipeline.state_dict()


CASES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "sequence": (_sequence, False),
    "sum": (lambda: _bags(False, PoolingType.SUM), False),
    "mean": (lambda: _bags(False, PoolingType.MEAN), False),
    "weighted sum": (lambda: _bags(True, PoolingType.SUM), True),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_outputs_and_updates_equal_torchrecs(case: str, micro_batches: int) -> None:
    make, weighted = CASES[case]
    torch.manual_seed(1)
    plain = Recording(make())
    torch.manual_seed(1)
    sharded = Recording(make())
    keys = _keys(weighted)
    loss, _ = plain(Batch(keys))
    loss.backward()
    expected = _by_name(plain.outputs)
    state = _train(sharded, keys, micro_batches)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None, name
        updated = parameter.detach() - 0.5 * parameter.grad
        assert torch.allclose(state[name], updated, atol=1e-6), name
    if micro_batches == 1:
        got = _by_name(sharded.outputs)
        assert list(got) == list(expected)
        for name, values in expected.items():
            assert torch.allclose(got[name], values, atol=1e-6), name


def test_sequence_outputs_carry_lengths_and_ids() -> None:
    torch.manual_seed(1)
    plain, sharded = Recording(_sequence()), Recording(_sequence())
    keys = _keys()
    plain(Batch(keys))
    _train(sharded, keys, 1)
    assert list(sharded.outputs) == ["f@a", "g", "f@b"]
    for name, jagged in plain.outputs.items():
        own: JaggedTensor = sharded.outputs[name]
        assert torch.equal(own.lengths(), jagged.lengths())
        assert torch.equal(own.offsets(), jagged.offsets())
        assert torch.equal(own.weights(), jagged.weights())


def test_a_weighted_mean_divides_by_the_number_of_ids() -> None:
    torch.manual_seed(1)
    model = Recording(_bags(True, PoolingType.MEAN))
    weight = model.collection.embedding_bags["a"].weight.detach().clone()  # type: ignore[union-attr, index]
    keys = _keys(weighted=True)
    _train(model, keys, 1)
    rows = weight[keys["f"].values()] * keys["f"].weights().unsqueeze(1)
    expected = [part.sum(0) / max(len(part), 1) for part in rows.split(keys["f"].lengths().tolist())]
    assert torch.allclose(_by_name(model.outputs)["f@a"], torch.stack(expected), atol=1e-6)


def test_a_module_that_two_paths_share_is_replaced_at_both() -> None:
    class Sharing(Recording):
        def __init__(self) -> None:
            super().__init__(_bags(False, PoolingType.SUM))
            self.again = self.collection

    model = Sharing()
    _train(model, _keys(), 1)
    assert model.again is model.collection
    assert not isinstance(model.again, EmbeddingBagCollection)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "holds no EmbeddingCollection"),
        (_sequence(), "is itself an embedding collection"),
    ],
    ids=["none", "bare"],
)
def test_models_without_a_place_for_rows_are_named(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NestPipe(model, sparse_optimizer=SGD(lr=0.1), dense_optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
