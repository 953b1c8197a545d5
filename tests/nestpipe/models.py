"""A small model with every kind of lookup, and batches of awkward shapes for it.

Every sample's loss depends on that sample alone, and all activations are smooth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec.streamable import Pipelineable

NUM_ROWS = {"item": 53, "user": 7, "word": 31, "tag": 19}
FEATURES = ("clicked", "bought", "user", "words", "tags", "more_tags")
TABLE_OF = {
    "clicked": "item",
    "bought": "item",
    "user": "user",
    "words": "word",
    "tags": "tag",
    "more_tags": "tag",
}


@dataclass
class Batch(Pipelineable):
    """Keys of all features, a dense input and a label a sample."""

    sparse_features: KeyedJaggedTensor
    dense: torch.Tensor
    labels: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(self.sparse_features.to(device), self.dense.to(device), self.labels.to(device))

    def record_stream(self, stream: torch.Stream) -> None: ...

    def pin_memory(self) -> Batch:
        return self


def sum_by_sample(jagged: JaggedTensor) -> torch.Tensor:
    """Rows [num_ids, dim] summed by sample, [num_samples, dim]."""
    lengths, rows = jagged.lengths(), jagged.values()
    samples = torch.repeat_interleave(
        torch.arange(lengths.numel(), device=lengths.device), lengths, output_size=rows.shape[0]
    )
    return rows.new_zeros(lengths.numel(), rows.shape[1]).index_add(0, samples, rows)


torch.fx.wrap("sum_by_sample")


class Model(nn.Module):
    """Two sequence collections of one dim, one of another, and a pooled one of mixed dims."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.ec = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name="item", num_embeddings=53, embedding_dim=8, feature_names=["clicked", "bought"]
                ),
                EmbeddingConfig(name="user", num_embeddings=7, embedding_dim=8, feature_names=["user"]),
            ]
        )
        self.words = EmbeddingCollection(
            tables=[EmbeddingConfig(name="word", num_embeddings=31, embedding_dim=4, feature_names=["words"])]
        )
        self.ebc = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name="tag",
                    num_embeddings=19,
                    embedding_dim=4,
                    feature_names=["tags", "more_tags"],
                    pooling=PoolingType.SUM,
                ),
                EmbeddingBagConfig(
                    name="mean_item",
                    num_embeddings=53,
                    embedding_dim=8,
                    feature_names=["clicked"],
                    pooling=PoolingType.MEAN,
                ),
            ]
        )
        self.mlp = nn.Sequential(nn.Linear(8 * 3 + 4 + 4 * 2 + 8 + 3, 12), nn.SiLU(), nn.Linear(12, 1))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        keys = batch.sparse_features
        items, words, pooled = self.ec(keys), self.words(keys), self.ebc(keys)
        inputs = torch.cat(
            [
                sum_by_sample(items["clicked"]),
                torch.tanh(sum_by_sample(items["bought"])),
                sum_by_sample(items["user"]),
                sum_by_sample(words["words"]),
                pooled.values(),
                batch.dense,
            ],
            dim=1,
        )
        predicted = self.mlp(inputs).squeeze(1)
        return ((predicted - batch.labels) ** 2).mean(), predicted


@dataclass(frozen=True)
class Data:
    """How batches come out: `keys` is mixed, equal, distinct, none_on_last_rank or zero_feature."""

    keys: str = "mixed"
    num_samples: int = 11
    dtype: torch.dtype = torch.float32

    def batch(self, step: int, rank: int, num_workers: int) -> Batch:
        """A function of the arguments alone."""
        generator = torch.Generator().manual_seed(1000 * step + rank)
        num_samples = self.num_samples
        lengths = torch.randint(0, 5, (len(FEATURES), num_samples), generator=generator)
        if self.keys == "zero_feature":
            lengths[0] = 0
        if self.keys == "none_on_last_rank" and rank == num_workers - 1:
            lengths.zero_()
        ids = []
        for feature, row in zip(FEATURES, lengths, strict=True):
            count, num_rows = int(row.sum()), NUM_ROWS[TABLE_OF[feature]]
            skewed = (torch.rand(count, generator=generator) ** 2 * num_rows).long()
            if self.keys == "equal":
                skewed.fill_(num_rows - 1)
            if self.keys == "distinct":
                first = (step * num_workers + rank) * count
                skewed = (first + torch.arange(count)) % num_rows
            ids.append(skewed)
        return Batch(
            KeyedJaggedTensor(list(FEATURES), torch.cat(ids), lengths=lengths.view(-1)),
            torch.randn(num_samples, 3, generator=generator).to(self.dtype),
            torch.randn(num_samples, generator=generator).to(self.dtype),
        )

    def batches(self, rank: int, num_workers: int, num_steps: int, first_step: int = 0) -> Iterator[Batch]:
        for step in range(first_step, first_step + num_steps):
            yield self.batch(step, rank, num_workers)
