"""Drop-in modules: what stands in for TorchRec's collections inside the model.

The rows of a micro-batch are there before its forward pass starts, so forward only spreads them over
the ids (EmbeddingCollection) or pools them (EmbeddingBagCollection); backward leaves their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from nestpipe.layout import Collection, Layout, Slot, by_module, embedding_names_of


@dataclass
class Lookup:
    """The rows at hand for one micro-batch, by row space."""

    features: KeyedJaggedTensor
    """The keys as they were routed."""
    version: int
    """Version counter of their values when they were routed."""
    rows: list[torch.Tensor]
    """[num_requested, dim] the unique rows, leaves that collect gradients."""
    inverse: list[torch.Tensor]
    """[num_ids] position of each id among the rows, slot after slot."""
    counts: list[list[int]]
    """Ids of each slot."""


class LookupContext:
    """Connects the drop-in modules with the micro-batch that the compute lane runs."""

    def __init__(self) -> None:
        self.current: Lookup | None = None

    def lookup(self, features: KeyedJaggedTensor, module: str, slots: Sequence[Slot]) -> Lookup:
        """The current lookup, after checking that `features` are the keys that were routed."""
        lookup = self.current
        if lookup is None:
            raise RuntimeError(
                f"module {module!r} was called outside NestPipe.progress; its rows are sharded over the "
                "workers and only at hand there"
            )
        if features.values()._version != lookup.version or not (
            features is lookup.features or _same_ids(features, lookup.features, slots)
        ):
            raise ValueError(
                f"the model changed its sparse input before the lookup in module {module!r}: NestPipe looks "
                "rows up before forward runs, so change ids in the data pipeline, before the batch reaches "
                "progress"
            )
        return lookup


def _same_ids(features: KeyedJaggedTensor, routed: KeyedJaggedTensor, slots: Sequence[Slot]) -> bool:
    """Whether `features` offers the routed memory for every feature that is read (views are fine)."""
    theirs, ours = features.to_dict(), routed.to_dict()
    return all(
        slot.feature in theirs
        and _same_memory(theirs[slot.feature].values(), ours[slot.feature].values())
        and _same_memory(theirs[slot.feature].lengths(), ours[slot.feature].lengths())
        for slot in slots
    )


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numel() == b.numel() and (a.numel() == 0 or a.data_ptr() == b.data_ptr())


@dataclass(frozen=True)
class _Part:
    """A module's slots in one row space and where they stand in that space's ids."""

    space: int
    slots: tuple[Slot, ...]
    first: int

    def ids(self, lookup: Lookup) -> tuple[torch.Tensor, list[int]]:
        counts = lookup.counts[self.space]
        mine = counts[self.first : self.first + len(self.slots)]
        inverse = lookup.inverse[self.space]
        if len(mine) == len(counts):
            return inverse, mine
        start = sum(counts[: self.first])
        return inverse[start : start + sum(mine)], mine


class _DropIn(nn.Module):
    def __init__(self, name: str, layout: Layout, context: LookupContext, collection: Collection) -> None:
        super().__init__()
        self._name = name
        self._context = context
        self._embedding_names = [name for names in embedding_names_of(collection) for name in names]
        self._parts: list[_Part] = []
        for space, slots in enumerate(layout.slots):
            first = 0
            for module, run in by_module(slots):
                if module == name:
                    self._parts.append(_Part(space, run, first))
                first += len(run)
        self._slots = tuple(slot for part in self._parts for slot in part.slots)


class RowsOfEmbeddingCollection(_DropIn):
    """Stands in for an EmbeddingCollection: one row an id, as a JaggedTensor a feature."""

    def __init__(
        self, name: str, layout: Layout, context: LookupContext, collection: EmbeddingCollection
    ) -> None:
        super().__init__(name, layout, context, collection)
        self._need_indices = collection.need_indices()

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        lookup = self._context.lookup(features, self._name, self._slots)
        outputs: dict[str, JaggedTensor] = {}
        jagged = features.to_dict()
        for part in self._parts:
            inverse, counts = part.ids(lookup)
            expanded = lookup.rows[part.space].index_select(0, inverse)
            for slot, rows in zip(part.slots, expanded.split(counts), strict=True):
                source = jagged[slot.feature]
                outputs[slot.embedding_name] = JaggedTensor(
                    rows,
                    lengths=source.lengths(),
                    offsets=source.offsets(),
                    weights=source.values() if self._need_indices else None,
                )
        return {name: outputs[name] for name in self._embedding_names}


class RowsOfEmbeddingBagCollection(_DropIn):
    """Stands in for an EmbeddingBagCollection: rows pooled by sample, sum or mean, weighted or not.

    A weighted mean divides the weighted sum by the number of ids, as FBGEMM does.
    """

    def __init__(
        self, name: str, layout: Layout, context: LookupContext, collection: EmbeddingBagCollection
    ) -> None:
        super().__init__(name, layout, context, collection)
        self._weighted = collection.is_weighted()

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        lookup = self._context.lookup(features, self._name, self._slots)
        pooled: dict[str, torch.Tensor] = {}
        jagged = features.to_dict()
        for part in self._parts:
            inverse, counts = part.ids(lookup)
            for slot, ids in zip(part.slots, inverse.split(counts), strict=True):
                pooled[slot.embedding_name] = self._pool(
                    lookup.rows[part.space], ids, jagged[slot.feature], slot
                )
        outputs = [pooled[name] for name in self._embedding_names]
        return KeyedTensor(
            keys=self._embedding_names,
            length_per_key=[output.shape[1] for output in outputs],
            values=torch.cat(outputs, dim=1),
        )

    def _pool(self, rows: torch.Tensor, ids: torch.Tensor, source: JaggedTensor, slot: Slot) -> torch.Tensor:
        num_samples = source.lengths().numel()
        if rows.shape[0] == 0:
            return rows.new_zeros(num_samples, rows.shape[1]) + rows.sum()
        weights = source.weights().to(rows.dtype) if self._weighted else None
        sums = F.embedding_bag(
            ids,
            rows,
            source.offsets().to(torch.int64),
            mode="sum",
            per_sample_weights=weights,
            include_last_offset=True,
        )
        return sums / source.lengths().clamp(min=1).unsqueeze(1) if slot.mean else sums


def install(model: nn.Module, collections: dict[str, Collection], layout: Layout) -> LookupContext:
    """Replace each collection of `model` by its drop-in, wherever the model refers to it."""
    context = LookupContext()
    replacements: dict[int, nn.Module] = {}
    for name, collection in collections.items():
        if isinstance(collection, EmbeddingBagCollection):
            replacements[id(collection)] = RowsOfEmbeddingBagCollection(name, layout, context, collection)
        else:
            replacements[id(collection)] = RowsOfEmbeddingCollection(name, layout, context, collection)
    for module in list(model.modules()):
        for child_name, child in list(module._modules.items()):  # named_children names a shared one once
            if id(child) in replacements:
                setattr(module, child_name, replacements[id(child)])
    return context
