"""Bags that one call pools for all slots, as on an accelerator, equal those pooled slot by slot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe import embedding
from nestpipe.embedding import Lookup, SlotIds, install, runs_of, version_of
from nestpipe.layout import build_layout

TABLES = (
    ("a", ["f", "g"], PoolingType.MEAN),
    ("b", ["g"], PoolingType.SUM),
    ("c", ["h", "f"], PoolingType.MEAN),
)
# Of f, g and h; bags without ids at the ends of a feature, and a feature without any.
LENGTHS = torch.tensor([2, 0, 3, 1, 0, 4, 0, 7, 0, 0, 0, 0])


def pooled(weighted: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The outputs by name, and the gradient of the rows, all of which are asked for."""
    generator = torch.Generator().manual_seed(0)
    num = int(LENGTHS.sum())
    weights = torch.rand(num, generator=generator) if weighted else None
    keys = KeyedJaggedTensor(["f", "g", "h"], torch.randint(5, (num,), generator=generator), weights, LENGTHS)
    tables = [
        EmbeddingBagConfig(
            name=name, num_embeddings=5, embedding_dim=4, feature_names=features, pooling=pooling
        )
        for name, features, pooling in TABLES
    ]
    collection = EmbeddingBagCollection(tables=tables, is_weighted=weighted)
    layout = build_layout({"bags": collection}, 1)
    model = nn.ModuleDict({"bags": collection})
    context = install(model, {"bags": collection}, layout)
    rows = torch.randn(15, 4, dtype=torch.float64, generator=generator).requires_grad_()
    ids = [keys[slot.feature].values() + slot.table.first_row for slot in layout.slots[0]]
    context.current = Lookup(keys, version_of(keys), [rows], [torch.cat(ids)], [list(map(len, ids))])
    outputs = model["bags"](keys)
    torch.sin(outputs.values() * torch.arange(outputs.values().numel()).view(4, -1)).sum().backward()
    assert rows.grad is not None
    return {name: values.detach() for name, values in outputs.to_dict().items()}, rows.grad


@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_together_equals_slot_by_slot(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def together(slots: Sequence[SlotIds], device: torch.device) -> list[list[SlotIds]]:
        runs = runs_of(slots, torch.device("cuda"))
        lengths.extend(map(len, runs))
        return runs

    plain, of_plain = pooled(weighted)
    monkeypatch.setattr(embedding, "runs_of", together)
    found, of_found = pooled(weighted)
    assert lengths == [1, 4]
    assert list(found) == ["f@a", "g@a", "g@b", "h", "f@c"]
    assert list(found) == list(plain)
    for name, values in plain.items():
        assert torch.equal(found[name], values), name
    torch.testing.assert_close(of_found, of_plain, rtol=1e-14, atol=1e-14)
