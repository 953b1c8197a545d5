"""Tiny models and batches of the tests' own, with every shape that the baselines must get right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workloads.interface import SequenceBatch

NUM_SAMPLES = 5
NUM_ROWS = {"item": 23, "user": 2, "word": 40, "bag": 17, "mean": 9}
"""Awkward on purpose: none divides evenly, and with three workers one has no user."""
FEATURE_TABLE = {"clicked": "item", "bought": "item", "user": "user", "words": "word"}
BAG_FEATURE_TABLE = {"bag": "bag", "other": "bag", "mean": "mean"}


def _values(jagged: dict[str, object], name: str) -> torch.Tensor:
    return jagged[name].values()  # type: ignore[attr-defined]


def _token_mean(values: torch.Tensor) -> torch.Tensor:
    """Mean over tokens that an empty batch does not turn into NaN."""
    return values.sum(dim=0) / max(values.shape[0], 1)


torch.fx.wrap("_values")
torch.fx.wrap("_token_mean")


def _tables(names: tuple[str, ...], dim: int) -> list[EmbeddingConfig]:
    features = {name: [f for f, table in FEATURE_TABLE.items() if table == name] for name in names}
    return [
        EmbeddingConfig(
            name=name, embedding_dim=dim, num_embeddings=NUM_ROWS[name], feature_names=features[name]
        )
        for name in names
    ]


class SequenceModel(nn.Module):
    """Two EmbeddingCollections of different dim, one table shared by two features, and a smooth MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = EmbeddingCollection(tables=_tables(("item", "user"), 8))
        self.narrow = EmbeddingCollection(tables=_tables(("word",), 4))
        self.mlp = nn.Sequential(nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 1))
        self.side = nn.Linear(4, 1)

    def forward(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        wide = self.wide(batch.sparse_features)
        narrow = self.narrow(batch.sparse_features)
        tokens = self.mlp(
            torch.cat([_values(wide, "clicked"), _values(wide, "bought"), _values(wide, "user")])
        )
        words = torch.tanh(self.side(_values(narrow, "words")))
        predicted = _token_mean(tokens) + _token_mean(words)
        return ((predicted - batch.labels) ** 2).mean(), predicted


class PooledModel(nn.Module):
    """An EmbeddingBagCollection of mixed dims and poolings with a smooth MLP."""

    def __init__(self, is_weighted: bool = False) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            is_weighted=is_weighted,
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=dim,
                    num_embeddings=NUM_ROWS[name],
                    feature_names=[f for f, table in BAG_FEATURE_TABLE.items() if table == name],
                    pooling=pooling,
                )
                for name, dim, pooling in (
                    ("bag", 8, PoolingType.SUM),
                    ("mean", 4, PoolingType.SUM if is_weighted else PoolingType.MEAN),
                )
            ],
        )
        self.mlp = nn.Sequential(nn.Linear(20, 6), nn.SiLU(), nn.Linear(6, 1))

    def forward(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = self.bags(batch.sparse_features).values()
        predicted = self.mlp(pooled).squeeze(1)
        return ((predicted - batch.labels) ** 2).mean(), predicted


@dataclass(frozen=True)
class Case:
    """A model by name, and whether its keys carry weights."""

    name: str

    @property
    def features(self) -> dict[str, str]:
        return FEATURE_TABLE if self.name == "sequence" else BAG_FEATURE_TABLE

    def model(self, seed: int = 7) -> nn.Module:
        """Equal weights on every call."""
        torch.manual_seed(seed)
        return SequenceModel() if self.name == "sequence" else PooledModel(self.name == "weighted")

    def batch(self, step: int, rank: int, num_samples: int = NUM_SAMPLES) -> SequenceBatch:
        """A batch that depends on step and rank alone; lengths from 0, ids with duplicates."""
        generator = torch.Generator().manual_seed(1000 * step + rank)
        num_features = len(self.features)
        # At step 1 rank 1 asks for nothing at all.
        longest = 0 if (step, rank) == (1, 1) else 6
        lengths = torch.randint(0, longest + 1, (num_features * num_samples,), generator=generator)
        per_feature = lengths.view(num_features, num_samples).sum(dim=1).tolist()
        ids = [
            torch.randint(0, NUM_ROWS[table], (count,), generator=generator)
            for table, count in zip(self.features.values(), per_feature, strict=True)
        ]
        values = torch.cat(ids)
        weights = torch.rand(values.numel(), generator=generator) if self.name == "weighted" else None
        keys = list(self.features)
        return SequenceBatch(
            sparse_features=KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, weights=weights),
            context=KeyedJaggedTensor(
                keys=["time"],
                values=torch.arange(num_samples),
                lengths=torch.ones(num_samples, dtype=torch.int64),
            ),
            labels=torch.randn(num_samples, generator=generator),
            sample_ids=torch.arange(num_samples),
        )
