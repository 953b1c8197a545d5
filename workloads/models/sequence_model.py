"""What models of item sequences share: tables, inputs, a stack of blocks, next-item loss and last state.

A model's own file holds its block, a module called with (states [num_tokens, dim], `Tokens`) that returns
the new states. A token's state must depend on that token and earlier ones of its sample alone, so that
neither padding nor the batch's other samples change a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor

from nestpipe.kernels.hstu_attention.relative_bias import TokenTimes
from nestpipe.kernels.padding import Padding
from workloads.interface import SequenceBatch, SideTable
from workloads.models.configs import SequenceModelConfig
from workloads.models.dropout import TokenDropout
from workloads.models.next_item import next_item_losses

_INPUT_LAYER = -1
"""The layer of the inputs' dropout; those of the blocks count from 0."""


@dataclass(frozen=True)
class Tokens:
    """What a block is told of the tokens beside their states.

    `times` are None for blocks without a time bias; `seeds` [S] are the samples' seeds for dropout.
    """

    padding: Padding
    times: TokenTimes | None
    seeds: torch.Tensor | None


class SequenceHead(nn.Module):
    """Inputs, blocks and loss. Without tables inside, it is one leaf to TorchRec's tracer."""

    def __init__(
        self,
        config: SequenceModelConfig,
        blocks: Sequence[nn.Module],
        sides: Sequence[SideTable],
        *,
        uses_time: bool,
        last_norm: nn.Module | None,
    ) -> None:
        super().__init__()
        self.config = config
        self.sides = tuple(sides)
        self.uses_time = uses_time
        self.positions = nn.Embedding(config.max_length, config.embedding_dim) if config.positions else None
        self.input_dropout = TokenDropout(config.embedding_dropout, _INPUT_LAYER)
        self.blocks = nn.ModuleList(blocks)
        self.last_norm = last_norm

    def forward(
        self, embeddings: Mapping[str, JaggedTensor], batch: SequenceBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and last state of each sample [S, dim], from the rows of all features."""
        # TorchRec's own modules give float32 rows whatever the table's dtype.
        dtype = next(self.parameters()).dtype
        items, negatives = embeddings["item"], embeddings["negative"]
        rows, negative_rows = items.values().to(dtype), negatives.values().to(dtype)
        padding = _padding_of("item", items, batch)
        self._check_length(padding)
        inputs = self._inputs(rows, embeddings, padding, batch)
        hidden = self._encode(inputs, padding, batch).to(dtype)
        # Under autocast the cosines would be rounded before the temperature magnifies them.
        with torch.autocast(hidden.device.type, enabled=False):
            losses = next_item_losses(
                hidden,
                rows,
                batch.sparse_features["item"].values(),
                negative_rows,
                batch.sparse_features["negative"].values(),
                padding,
                _padding_of("negative", negatives, batch),
                self.config.temperature,
            )
        return losses.sum() / max(len(losses), 1), padding.last(hidden)

    def _inputs(
        self,
        rows: torch.Tensor,
        embeddings: Mapping[str, JaggedTensor],
        padding: Padding,
        batch: SequenceBatch,
    ) -> torch.Tensor:
        """Each token's row with its position's vector and its side features' rows: [num_tokens, dim]."""
        inputs = rows
        if self.positions is not None:
            inputs = inputs + self.positions(padding.positions)
        for side in self.sides:
            jagged = embeddings[side.name]
            if not _has_its_keys(side, jagged, padding, batch):
                share = "one key for each of the sample's items" if side.per_token else "one key a sample"
                raise ValueError(f"side feature {side.name!r} needs {share}")
            inputs = inputs + _rows_of_side(side, jagged, padding).to(rows.dtype)
        return inputs

    def _encode(self, inputs: torch.Tensor, padding: Padding, batch: SequenceBatch) -> torch.Tensor:
        tokens = Tokens(padding, self._times(batch, padding), batch.seeds)
        hidden: torch.Tensor = self.input_dropout(inputs, padding, batch.seeds)
        for block in self.blocks:
            hidden = block(hidden, tokens)
        return hidden if self.last_norm is None else self.last_norm(hidden)

    def _times(self, batch: SequenceBatch, padding: Padding) -> TokenTimes | None:
        if not self.uses_time:
            return None
        if batch.context is None:
            raise ValueError("a model with a time bias needs batches whose `context` has the key 'timestamp'")
        return TokenTimes(batch.context["timestamp"].values(), padding)

    def _check_length(self, padding: Padding) -> None:
        if padding.width > self.config.max_length:
            raise ValueError(
                f"a sample has {padding.width} items, more than the model's "
                f"max_length={self.config.max_length}"
            )


def _padding_of(feature: str, jagged: JaggedTensor, batch: SequenceBatch) -> Padding:
    """The places of the rows of one feature."""
    known = batch.lengths_of(feature)
    return Padding.of(jagged.lengths(), len(jagged.values()), None if known is None else known.longest)


def _has_its_keys(side: SideTable, jagged: JaggedTensor, padding: Padding, batch: SequenceBatch) -> bool:
    """Whether a side feature has as many keys as its tokens or samples; `padding` is that of the items."""
    known, of_items = batch.lengths_of(side.name), batch.lengths_of("item")
    if known is None or of_items is None:
        expected = padding.lengths if side.per_token else torch.ones_like(padding.lengths)
        return torch.equal(jagged.lengths().long(), expected)
    return known.same_as == of_items.same_as if side.per_token else known.is_one_each


def _rows_of_side(side: SideTable, jagged: JaggedTensor, padding: Padding) -> torch.Tensor:
    """The row of one side feature for each token: [num_tokens, dim]."""
    if side.per_token:
        return jagged.values()
    # Not index_select, whose gradient is added in an order that changes from run to run on a GPU.
    return functional.embedding(padding.samples, jagged.values())


class SequenceModel(nn.Module):
    """A table of items that the features `item` and `negative` share, one a side feature, and the head."""

    def __init__(
        self,
        config: SequenceModelConfig,
        blocks: Sequence[nn.Module],
        num_rows: Sequence[int],
        sides: Sequence[SideTable],
        *,
        uses_time: bool,
        last_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        (num_items,) = num_rows
        _check_names(sides)
        tables = [_table("item", num_items, config, ["item", "negative"])]
        tables += [_table(side.name, side.num_rows, config, [side.name]) for side in sides]
        self.embedding_collection = EmbeddingCollection(tables=tables)
        self.head = SequenceHead(config, blocks, sides, uses_time=uses_time, last_norm=last_norm)

    def forward(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, a mean over samples, and the last state of each sample [S, embedding_dim]."""
        embeddings = self.embedding_collection(batch.sparse_features)
        loss, last = self.head(embeddings, batch)
        return loss, last


def _check_names(sides: Sequence[SideTable]) -> None:
    names = ["item", "negative", *(side.name for side in sides)]
    for name in names[2:]:
        if names.count(name) > 1:
            raise ValueError(f"side feature {name!r} has a name that is taken: rename one of {names}")


def _table(name: str, num_rows: int, config: SequenceModelConfig, features: list[str]) -> EmbeddingConfig:
    return EmbeddingConfig(
        name=name,
        embedding_dim=config.embedding_dim,
        num_embeddings=num_rows,
        feature_names=features,
    )
