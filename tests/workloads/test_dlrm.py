"""DLRM-v2 against its equations on one sample at a time, and what must not change its results."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.workloads.batches import rows_of, select
from workloads.interface import SequenceBatch
from workloads.models import dlrm
from workloads.models.configs import DLRM_VARIANTS, DlrmConfig

NUM_ROWS = (7, 1, 23)
LENGTHS = {"color": (1, 0, 3, 2, 1, 4), "only": (1, 1, 1, 1, 1, 1), "words": (0, 5, 2, 9, 0, 1)}
NUM_SAMPLES = 6
SMALL: dict[str, Any] = {
    "embedding_dim": 4,
    "num_dense": 3,
    "bottom": (5, 6),
    "cross_rank": 2,
    "over": (7, 3),
}


class FullPrecisionBags(nn.Module):
    """Summed rows without TorchRec's conversion to float32; the names of the parameters stay."""

    def __init__(self, collection: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embedding_bags = collection.embedding_bags
        self._configs = collection.embedding_bag_configs()

    def forward(self, features: KeyedJaggedTensor) -> dict[str, torch.Tensor]:
        pooled = {}
        for config in self._configs:
            (name,) = config.feature_names
            offsets = nn.functional.pad(features[name].lengths().cumsum(0), (1, 0))
            pooled[name] = self.embedding_bags[config.name](features[name].values(), offsets)
        return pooled


def create(**settings: Any) -> dlrm.Dlrm:
    """A float64 model with every parameter moved away from zero."""
    model = dlrm.build(DlrmConfig(**{**SMALL, **settings}), NUM_ROWS, 2, list(LENGTHS)).to(torch.float64)
    model.embedding_bag_collection = FullPrecisionBags(model.embedding_bag_collection)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.3)
    return model


def uneven_batch(num_dense: int = 3) -> SequenceBatch:
    """Multi-hot samples, some without keys, and one field of one row."""
    generator = torch.Generator().manual_seed(5)
    values = [
        torch.randint(rows, (sum(LENGTHS[name]),), generator=generator)
        for name, rows in zip(LENGTHS, NUM_ROWS, strict=True)
    ]
    return SequenceBatch(
        sparse_features=KeyedJaggedTensor(
            keys=list(LENGTHS),
            values=torch.cat(values),
            lengths=torch.tensor([length for name in LENGTHS for length in LENGTHS[name]]),
        ),
        context=None,
        labels=torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 1.0]),
        sample_ids=torch.arange(NUM_SAMPLES),
        dense=torch.randn(NUM_SAMPLES, num_dense, generator=generator) if num_dense else None,
    )


def reference(
    model: dlrm.Dlrm, config: DlrmConfig, batch: SequenceBatch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and logits from the equations, with the parameters of `model` by their names."""
    w: dict[str, torch.Tensor] = dict(model.named_parameters())
    keys = {name: rows_of(batch.sparse_features, name) for name in LENGTHS}
    logits, losses = [], []
    for sample in range(NUM_SAMPLES):
        parts = []
        if config.num_dense:
            assert batch.dense is not None
            parts.append(_mlp(batch.dense[sample].double(), w, "head.bottom", len(config.bottom), config))
        for name in LENGTHS:
            table = w[f"embedding_bag_collection.embedding_bags.{name}.weight"]
            parts.append(sum((table[key] for key in keys[name][sample]), torch.zeros_like(table[0])))
        x0 = x = torch.cat(parts)
        for layer in range(config.cross_layers):
            v, big_w, b = (w[f"head.cross.{layer}.{part}"] for part in ("v.weight", "w.weight", "w.bias"))
            x = x0 * (big_w @ v @ x + b) + x
        hidden = _mlp(x, w, "head.over", len(config.over), config)
        logit = (w["head.logit.weight"] @ hidden + w["head.logit.bias"])[0]
        probability = 1 / (1 + torch.exp(-logit))
        losses.append(-torch.log(probability if batch.labels[sample] else 1 - probability))
        logits.append(logit)
    return torch.stack(losses).mean(), torch.stack(logits)


def _mlp(
    x: torch.Tensor, w: dict[str, torch.Tensor], name: str, num_layers: int, config: DlrmConfig
) -> torch.Tensor:
    for layer in range(0, 2 * num_layers, 2):
        x = w[f"{name}.{layer}.weight"] @ x + w[f"{name}.{layer}.bias"]
        x = x / (1 + torch.exp(-x)) if config.activation == "silu" else x.clamp(min=0)
    return x


@pytest.mark.parametrize(
    "settings", [{}, {"activation": "relu", "cross_layers": 1}, {"num_dense": 0, "cross_layers": 0}], ids=str
)
def test_loss_logits_and_every_gradient_against_a_loop(settings: dict[str, Any]):
    model, other = create(**settings), create(**settings)
    config = DlrmConfig(**{**SMALL, **settings})
    batch = uneven_batch(config.num_dense)
    loss, logits = model(batch)
    expected_loss, expected_logits = reference(other, config, batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-12, atol=1e-13)
    loss.backward()
    expected_loss.backward()
    for (name, ours), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert ours.grad is not None, name
        assert ours.grad.abs().max() > 0, name
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12, msg=name)


def test_gradients_of_micro_batches_add_up():
    model, batch = create(), uneven_batch()
    loss, logits = model(batch)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    for cut in ([4, 0], [3], [1, 2, 5]):
        part, output = model(select(batch, cut))
        torch.testing.assert_close(output, logits[cut], rtol=1e-12, atol=1e-13)
        (len(cut) / NUM_SAMPLES * part).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-11, atol=1e-13, msg=name)


def test_float32_and_autocast():
    model, batch = dlrm.build(DlrmConfig(**SMALL), NUM_ROWS, 2, list(LENGTHS)), uneven_batch()
    expected, _ = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, logits = model(batch)
    loss.backward()
    assert loss.dtype == logits.dtype == torch.float32
    # Logits near 0 that are wrong by a few roundings of 2^-9.
    assert 0 < (loss - expected).abs() < 2**-6
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_published_sizes_with_few_rows():
    model = dlrm.build(DlrmConfig(**DLRM_VARIANTS["mlperf"]), [2] * 26, 1)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.head.named_parameters()}
    width = 27 * 128
    assert [shapes[f"bottom.{layer}.weight"] for layer in (0, 2, 4)] == [(512, 13), (256, 512), (128, 256)]
    assert shapes["cross.2.v.weight"] == (512, width)
    assert shapes["cross.2.w.weight"] == (width, 512)
    over = [shapes[f"over.{layer}.weight"] for layer in (0, 2, 4, 6)]
    assert over == [(1024, width), (1024, 1024), (512, 1024), (256, 512)]
    assert shapes["logit.weight"] == (1, 256)


def test_tables_are_numbered_where_features_have_no_name():
    configs = dlrm.build(DlrmConfig(**SMALL), [3, 4], 1).embedding_bag_collection.embedding_bag_configs()
    named = [(config.name, config.feature_names, config.num_embeddings) for config in configs]
    assert named == [("table_0", ["feature_0"], 3), ("table_1", ["feature_1"], 4)]


def test_weights_are_a_function_of_the_seed():
    models = [dlrm.build(DlrmConfig(**SMALL), NUM_ROWS, seed) for seed in (1, 1, 2)]
    first, again, other = (dict(model.named_parameters()) for model in models)
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        assert "bias" in name or not torch.equal(weight, other[name])


def test_numeric_features_that_do_not_fit():
    batch = uneven_batch()
    with pytest.raises(ValueError, match="num_dense=5 numeric features a sample, the batch has 3"):
        create(num_dense=5)(batch)
    with pytest.raises(ValueError, match="the batch has none"):
        create()(dataclasses.replace(batch, dense=None))


def test_it_learns():
    model, batch = dlrm.build(DlrmConfig(**SMALL), NUM_ROWS, 2, list(LENGTHS)), uneven_batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(30):
        loss, _ = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
