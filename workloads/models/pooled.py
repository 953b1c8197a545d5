"""The lookup-heavy model: rows of every feature averaged over the sample, then a small SiLU MLP."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor

from nestpipe.kernels.pool import pool_rows
from workloads.interface import SequenceBatch
from workloads.models.configs import PooledConfig
from workloads.models.initial import initialise
from workloads.models.names import tables_and_features


class PooledHead(nn.Module):
    """Means over samples, MLP and loss. Without tables inside, it is one leaf to TorchRec's tracer."""

    def __init__(self, features: Sequence[str], config: PooledConfig) -> None:
        super().__init__()
        self.features = list(features)
        widths = [len(self.features) * config.embedding_dim, *config.hidden]
        layers: list[nn.Module] = []
        for narrow, wide in itertools.pairwise(widths):
            layers += [nn.Linear(narrow, wide), nn.SiLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(
        self, embeddings: Mapping[str, JaggedTensor], labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean binary cross-entropy and the logits [num_samples]."""
        pooled = torch.cat([_mean_of_rows(embeddings[feature]) for feature in self.features], dim=1)
        # TorchRec's own modules give float32 rows whatever the table's dtype.
        dtype = next(self.parameters()).dtype
        logits = self.mlp(pooled.to(dtype)).squeeze(1).to(dtype)
        loss = functional.binary_cross_entropy_with_logits(logits, labels.to(dtype))
        return loss, logits


class Pooled(nn.Module):
    """One table a feature; `forward(batch)` returns (loss, logits [num_samples])."""

    def __init__(
        self, config: PooledConfig, num_rows: Sequence[int], features: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        names = tables_and_features(len(num_rows), features)
        tables = [
            EmbeddingConfig(
                name=table,
                embedding_dim=config.embedding_dim,
                num_embeddings=rows,
                feature_names=[feature],
            )
            for (table, feature), rows in zip(names, num_rows, strict=True)
        ]
        self.embedding_collection = EmbeddingCollection(tables=tables)
        self.head = PooledHead([feature for _, feature in names], config)

    def forward(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, a mean over samples, and logits [num_samples]."""
        embeddings = self.embedding_collection(batch.sparse_features)
        loss, logits = self.head(embeddings, batch.labels)
        return loss, logits


def _mean_of_rows(rows: JaggedTensor) -> torch.Tensor:
    """[num_tokens, dim] -> [num_samples, dim]; a sample without tokens gives zeros."""
    return pool_rows(rows.values().contiguous(), None, rows.offsets().long(), "mean")


def build(
    config: PooledConfig, num_rows: Sequence[int], seed: int, features: Sequence[str] | None = None
) -> Pooled:
    """The model with one table a feature and weights that are a function of `seed`."""
    return initialise(Pooled(config, num_rows, features), seed)
