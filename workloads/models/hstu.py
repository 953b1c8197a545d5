"""HSTU (Zhai et al., ICML 2024) in plain torch, on jagged sequences, with the next-item loss.

A block on tokens x: `[U, V, Q, K] = split(SiLU(LayerNorm(x) W))`, `A = causal(SiLU(Q K^T + rab)) / n_max`,
`y = W_o Dropout(U * LayerNorm(A V)) + x`, where rab is a learned bias of the distance in positions plus one
of the distance in time, bucket `floor(ln(max(|dt|, 1)) / 0.301)` in 0 ... 128, dt in seconds. There is no
softmax, so a token's state does not depend on padding or on the batch's other samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor

from workloads.configs import HstuConfig
from workloads.interface import SequenceBatch
from workloads.models.dropout import seeded_dropout
from workloads.models.initial import initialise
from workloads.models.next_item import next_item_losses
from workloads.models.padding import Padding
from workloads.models.relative_bias import NUM_TIME_BUCKETS, bias_of, position_distances, time_buckets


class HstuBlock(nn.Module):
    """One block; see the module's docstring."""

    def __init__(self, config: HstuConfig, layer: int) -> None:
        super().__init__()
        dim = config.embedding_dim
        self.num_heads = config.num_heads
        self.max_length = config.max_length
        self.dropout = config.dropout
        self.layer = layer
        self.norm = nn.LayerNorm(dim)
        self.uvqk = nn.Linear(dim, 4 * dim, bias=False)
        self.attention_norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, dim, bias=False)
        self.position_bias = nn.Parameter(torch.zeros(config.max_length))
        self.time_bias = nn.Parameter(torch.zeros(NUM_TIME_BUCKETS))

    def forward(
        self, x: torch.Tensor, padding: Padding, buckets: torch.Tensor, seeds: torch.Tensor | None
    ) -> torch.Tensor:
        """Tokens [num_tokens, dim] -> [num_tokens, dim]; `buckets` [S, width, width], `seeds` [S]."""
        u, v, q, k = functional.silu(self.uvqk(self.norm(x))).chunk(4, dim=1)
        attended = self._attend(
            self._heads(v, padding), self._heads(q, padding), self._heads(k, padding), buckets
        )
        tokens = padding.unpad(attended.transpose(1, 2).flatten(2))
        gated = u * self.attention_norm(tokens)
        if self.training and self.dropout > 0:
            gated = self._dropped(gated, padding, seeds)
        projected: torch.Tensor = self.output(gated)
        return projected + x

    def _heads(self, tokens: torch.Tensor, padding: Padding) -> torch.Tensor:
        """[num_tokens, dim] -> [S, num_heads, width, dim / num_heads]."""
        return padding.pad(tokens.view(len(tokens), self.num_heads, -1)).transpose(1, 2)

    def _attend(
        self, v: torch.Tensor, q: torch.Tensor, k: torch.Tensor, buckets: torch.Tensor
    ) -> torch.Tensor:
        distance = position_distances(q.shape[2], q.device)
        bias = self.position_bias[distance.clamp(min=0)] + bias_of(self.time_bias, buckets)
        weights = functional.silu(q @ k.transpose(2, 3) + bias.unsqueeze(1)) / self.max_length
        # Padding comes after a sample's tokens, so causality keeps it out as well.
        return weights.masked_fill(distance < 0, 0.0) @ v

    def _dropped(self, x: torch.Tensor, padding: Padding, seeds: torch.Tensor | None) -> torch.Tensor:
        if seeds is None:
            raise ValueError("HSTU with dropout > 0 needs batches with `seeds`, one a sample")
        return seeded_dropout(x, seeds[padding.samples], padding.positions, self.layer, self.dropout)


class HstuHead(nn.Module):
    """Blocks and loss. Without tables inside, it is one leaf to TorchRec's tracer."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(HstuBlock(config, layer) for layer in range(config.num_blocks))

    def forward(
        self, items: JaggedTensor, negatives: JaggedTensor, batch: SequenceBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and last state of each sample [S, dim], from the rows of both features."""
        # TorchRec's own modules give float32 rows whatever the table's dtype.
        dtype = next(self.parameters()).dtype
        item_rows, negative_rows = items.values().to(dtype), negatives.values().to(dtype)
        padding = Padding.of(items.lengths(), len(item_rows))
        hidden = self._encode(item_rows, padding, batch)
        losses = next_item_losses(
            hidden,
            item_rows,
            batch.sparse_features["item"].values(),
            negative_rows,
            batch.sparse_features["negative"].values(),
            padding,
            Padding.of(negatives.lengths(), len(negative_rows)),
            self.config.temperature,
        )
        return losses.sum() / max(len(losses), 1), padding.last(hidden)

    def _encode(self, rows: torch.Tensor, padding: Padding, batch: SequenceBatch) -> torch.Tensor:
        if padding.width > self.config.max_length:
            raise ValueError(
                f"a sample has {padding.width} items, more than the model's "
                f"max_length={self.config.max_length}"
            )
        if batch.context is None:
            raise ValueError("HSTU needs batches whose `context` has the key 'timestamp'")
        buckets = time_buckets(padding.pad(batch.context["timestamp"].values()))
        hidden = rows
        for block in self.blocks:
            hidden = block(hidden, padding, buckets, batch.seeds)
        return hidden


class Hstu(nn.Module):
    """One table of items that the features `item` and `negative` share, and the head."""

    def __init__(self, config: HstuConfig, num_items: int) -> None:
        super().__init__()
        table = EmbeddingConfig(
            name="item",
            embedding_dim=config.embedding_dim,
            num_embeddings=num_items,
            feature_names=["item", "negative"],
        )
        self.embedding_collection = EmbeddingCollection(tables=[table])
        self.head = HstuHead(config)

    def forward(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, a mean over samples, and the last state of each sample [S, embedding_dim]."""
        embeddings = self.embedding_collection(batch.sparse_features)
        loss, last = self.head(embeddings["item"], embeddings["negative"], batch)
        return loss, last


def build(config: HstuConfig, num_rows: Sequence[int], seed: int) -> Hstu:
    """The model of one table with weights that are a function of `seed`."""
    (num_items,) = num_rows
    return initialise(Hstu(config, num_items), seed)
