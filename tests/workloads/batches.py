"""What several tests do with batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from workloads.histories import Histories
from workloads.interface import SequenceBatch


def rows_of(jagged: KeyedJaggedTensor, key: str) -> list[list[int]]:
    """The values of one key, a list a sample."""
    feature = jagged[key]
    return [part.tolist() for part in torch.split(feature.values(), feature.lengths().tolist())]


def plain(batch: SequenceBatch) -> dict[str, Any]:
    """A batch as lists, for comparisons."""
    lists: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, KeyedJaggedTensor):
            lists[field.name] = {key: rows_of(value, key) for key in value.keys()}  # noqa: SIM118
        elif value is not None:
            lists[field.name] = value.tolist()
    return lists


def samples_of(batch: SequenceBatch) -> dict[int, dict[str, Any]]:
    """Everything a batch says about each of its samples, by sample id."""
    lists = plain(batch)
    samples: dict[int, dict[str, Any]] = {}
    for index, sample_id in enumerate(lists["sample_ids"]):
        sample: dict[str, Any] = {}
        for name, value in lists.items():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            sample |= {f"{name}/{key}": rows[index] for key, rows in parts}
        samples[sample_id] = sample
    return samples


def _selected(jagged: KeyedJaggedTensor, samples: list[int]) -> KeyedJaggedTensor:
    rows = [rows_of(jagged, key)[sample] for key in jagged.keys() for sample in samples]  # noqa: SIM118
    return KeyedJaggedTensor(
        keys=jagged.keys(),
        values=torch.tensor([value for row in rows for value in row], dtype=torch.int64),
        lengths=torch.tensor([len(row) for row in rows], dtype=torch.int64),
    )


def select(batch: SequenceBatch, samples: list[int]) -> SequenceBatch:
    """The batch of some samples, in the given order."""
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, KeyedJaggedTensor):
            parts[field.name] = _selected(value, samples)
        else:
            parts[field.name] = None if value is None else value[samples]
    return SequenceBatch(**parts)


def pinned(batch: SequenceBatch) -> SequenceBatch:
    """What a batch is in pinned memory, in memory that is not pinned: that takes an accelerator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
        return batch.pin_memory()


def histories_of(lengths: list[int], num_items: int, seed: int = 0) -> Histories:
    """Random histories of users with the given lengths; user ids are 10, 20, ..."""
    generator = np.random.default_rng(seed)
    total = sum(lengths)
    gaps = generator.integers(0, 100_000, size=total)
    return Histories(
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        items=generator.integers(0, num_items, size=total),
        timestamps_s=1_600_000_000 + np.cumsum(gaps),
        actions=np.ones(total, dtype=np.float32),
        user_ids=10 * np.arange(1, len(lengths) + 1),
        item_ids=7 * np.arange(num_items),
    )


class _FullPrecision(nn.Module):
    """An EmbeddingCollection's tables and features without its conversion to float32."""

    def __init__(self, collection: EmbeddingCollection) -> None:
        super().__init__()
        self.embeddings = collection.embeddings
        self._configs = collection.embedding_configs()

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        return {
            name: JaggedTensor(
                self.embeddings[config.name](features[name].values()), lengths=features[name].lengths()
            )
            for config in self._configs
            for name in config.feature_names
        }


def in_full_precision(model: nn.Module) -> nn.Module:
    """The model with lookups in the dtype of its tables; the names of the parameters stay."""
    model.embedding_collection = _FullPrecision(model.embedding_collection)
    return model
