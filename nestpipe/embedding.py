"""Drop-in modules: what stands in for TorchRec's collections inside the model.

The rows of a micro-batch are there before its forward pass starts, so forward only spreads them over
the ids (EmbeddingCollection) or pools them (EmbeddingBagCollection); backward leaves their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from nestpipe.kernels.expand import expand_rows
from nestpipe.kernels.pool import Mode, pool_rows
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


def version_of(features: KeyedJaggedTensor) -> int:
    """Version counter of the keys' values; a tensor made in inference mode has none."""
    values = features.values()
    return 0 if values.is_inference() else values._version


class LookupContext:
    """Connects the drop-in modules with the micro-batch that the compute lane runs."""

    def __init__(self) -> None:
        self.current: Lookup | None = None

    def lookup(self, features: KeyedJaggedTensor, module: str, slots: Sequence[Slot]) -> Lookup:
        """The current lookup, after checking that `features` are the keys that were routed."""
        lookup = self.current
        if lookup is None:
            raise RuntimeError(
                f"module {module!r} was called outside NestPipe.progress and evaluate; its rows are "
                "sharded over the workers and only at hand there"
            )
        if version_of(features) != lookup.version or not (
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
            expanded = expand_rows(lookup.rows[part.space], inverse)
            for slot, rows in zip(part.slots, expanded.split(counts), strict=True):
                source = jagged[slot.feature]
                outputs[slot.embedding_name] = JaggedTensor(
                    rows,
                    lengths=source.lengths(),
                    offsets=source.offsets(),
                    weights=source.values() if self._need_indices else None,
                )
        return {name: outputs[name] for name in self._embedding_names}


SlotIds: TypeAlias = tuple[Slot, torch.Tensor]
"""A slot and the positions of its ids among the rows."""


class RowsOfEmbeddingBagCollection(_DropIn):
    """Stands in for an EmbeddingBagCollection: rows pooled by sample, sum or mean, weighted or not.

    A weighted mean divides the weighted sum by the number of ids, as FBGEMM does.
    """

    def __init__(
        self, name: str, layout: Layout, context: LookupContext, collection: EmbeddingBagCollection
    ) -> None:
        super().__init__(name, layout, context, collection)
        self._weighted = collection.is_weighted()

    def kinds(self) -> Iterator[tuple[int, Mode, bool]]:
        """Row space and mode of every pooling that forward does, and whether it is weighted."""
        for part in self._parts:
            for slot in part.slots:
                yield part.space, "mean" if slot.mean else "sum", self._weighted

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        lookup = self._context.lookup(features, self._name, self._slots)
        pooled: dict[str, torch.Tensor] = {}
        jagged = features.to_dict()
        for part in self._parts:
            rows = lookup.rows[part.space]
            ids, counts = part.ids(lookup)
            slots = list(zip(part.slots, ids.split(counts), strict=True))
            for run in runs_of(slots, rows.device):
                pooled |= self._pool(rows, run, [jagged[slot.feature] for slot, _ in run])
        outputs = [pooled[name] for name in self._embedding_names]
        return KeyedTensor(
            keys=self._embedding_names,
            length_per_key=[output.shape[1] for output in outputs],
            values=torch.cat(outputs, dim=1),
        )

    def _pool(
        self, rows: torch.Tensor, run: Sequence[SlotIds], sources: Sequence[JaggedTensor]
    ) -> dict[str, torch.Tensor]:
        """The output of each slot of a run by name; `sources` are their features."""
        weights = None
        if self._weighted:
            weights = _joined([source.weights() for source in sources]).to(rows.dtype).contiguous()
        mode: Mode = "mean" if run[0][0].mean else "sum"
        pooled = pool_rows(rows, _joined([ids for _, ids in run]), _offsets(sources), mode, weights)
        if len(run) == 1:
            return {run[0][0].embedding_name: pooled}
        parts = pooled.split([source.lengths().numel() for source in sources])
        return {slot.embedding_name: part for (slot, _), part in zip(run, parts, strict=True)}


def runs_of(slots: Sequence[SlotIds], device: torch.device) -> list[list[SlotIds]]:
    """Slots that one call pools: all of a mode on an accelerator, each alone on the CPU.

    The gradient of a call has all rows of the space, and a kernel's start takes longer than a slot.
    """
    if device.type == "cpu":
        return [[slot] for slot in slots]
    runs = [[slot for slot in slots if slot[0].mean is mean] for mean in (False, True)]
    return [run for run in runs if run]


def _offsets(sources: Sequence[JaggedTensor]) -> torch.Tensor:
    """int64 offsets of the bags of all sources, one after the other."""
    if len(sources) == 1:
        return sources[0].offsets().to(torch.int64)
    lengths = torch.cat([source.lengths() for source in sources])
    return nn.functional.pad(lengths.cumsum(0), (1, 0))


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


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
