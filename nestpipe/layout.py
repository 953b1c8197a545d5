"""Where every table of a model lives: row spaces, and which feature reads which rows of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    get_embedding_names_by_table,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe.routing import RowSpace

Collection: TypeAlias = EmbeddingCollection | EmbeddingBagCollection


@dataclass(frozen=True)
class Table:
    """One embedding table: its parameter's name in the unsharded model and its place in a row space."""

    name: str
    module: str
    parameter: str
    space: int
    first_row: int
    num_rows: int
    config: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class Slot:
    """One feature looked up in one table for one module."""

    feature: str
    embedding_name: str
    module: str
    table: Table
    mean: bool = False


@dataclass(frozen=True)
class Layout:
    """All tables and slots of a model; `slots[space]` in the order in which ids are laid out."""

    spaces: tuple[RowSpace, ...]
    tables: tuple[Table, ...]
    slots: tuple[tuple[Slot, ...], ...]


def find_collections(model: nn.Module) -> dict[str, Collection]:
    """The TorchRec collections of a model by path; a shared one under its first path only."""
    found = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, EmbeddingCollection | EmbeddingBagCollection)
    }
    if not found:
        raise ValueError(
            f"the model ({type(model).__name__}) holds no EmbeddingCollection or EmbeddingBagCollection of "
            "TorchRec; NestPipe has nothing to look up"
        )
    if "" in found:
        raise ValueError(
            "the model is itself an embedding collection; wrap it in a module that returns a loss"
        )
    return found


def configs_of(collection: Collection) -> list[EmbeddingConfig]:
    """The table configurations of a collection, whichever kind it is."""
    if isinstance(collection, EmbeddingBagCollection):
        return collection.embedding_bag_configs()
    return collection.embedding_configs()


def embedding_names_of(collection: Collection) -> list[list[str]]:
    """Names of a collection's outputs, by table: `feature@table` where several tables read a feature."""
    return get_embedding_names_by_table(configs_of(collection))


def table_parameter(collection: Collection, table_name: str) -> nn.Parameter:
    """The weight of one table of a collection."""
    is_bag = isinstance(collection, EmbeddingBagCollection)
    tables = collection.embedding_bags if is_bag else collection.embeddings
    return tables[table_name].weight


def build_layout(collections: dict[str, Collection], num_ranks: int) -> Layout:
    """Assign every table to the row space of its dim and dtype, one behind the other."""
    next_row: dict[tuple[int, torch.dtype], int] = {}
    kinds: list[tuple[int, torch.dtype]] = []
    tables: list[Table] = []
    slots: list[Slot] = []
    for path, collection in collections.items():
        for config, parameter_name, names in _tables_of(path, collection):
            kind = (config.embedding_dim, table_parameter(collection, config.name).dtype)
            if kind not in next_row:
                next_row[kind] = 0
                kinds.append(kind)
            table = Table(
                config.name,
                path,
                parameter_name,
                kinds.index(kind),
                next_row[kind],
                config.num_embeddings,
                config,
            )
            next_row[kind] += config.num_embeddings
            tables.append(table)
            mean = getattr(config, "pooling", None) is PoolingType.MEAN
            slots += [
                Slot(feature, name, path, table, mean)
                for feature, name in zip(config.feature_names, names, strict=True)
            ]
    spaces = tuple(RowSpace(dim, dtype, next_row[dim, dtype], num_ranks) for dim, dtype in kinds)
    by_space = tuple(tuple(s for s in slots if s.table.space == index) for index in range(len(spaces)))
    return Layout(spaces, tuple(tables), by_space)


def _tables_of(path: str, collection: Collection) -> Iterator[tuple[EmbeddingConfig, str, list[str]]]:
    is_bag = isinstance(collection, EmbeddingBagCollection)
    inner = "embedding_bags" if is_bag else "embeddings"
    configs = configs_of(collection)
    for config, names in zip(configs, embedding_names_of(collection), strict=True):
        yield config, f"{path}.{inner}.{config.name}.weight", names


class IdReader:
    """Takes the ids of a micro-batch out of its KeyedJaggedTensor, checks them, makes them keys."""

    def __init__(self, layout: Layout, rank: int) -> None:
        self._layout = layout
        self._rank = rank

    def check(self, features: KeyedJaggedTensor) -> None:
        """Raise ValueError for an unknown feature, a wrong dtype and an id outside its table."""
        values = features.values()
        if values.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"rank {self._rank}: ids must be int64 or int32, but the features "
                f"{list(features.keys())} have dtype {values.dtype}; convert them in the data pipeline"
            )
        known = features.keys()
        bounds = features.offset_per_key()
        for slot in (slot for slots in self._layout.slots for slot in slots):
            if slot.feature not in known:
                raise ValueError(
                    f"rank {self._rank}: table {slot.table.name!r} of module {slot.module!r} reads feature "
                    f"{slot.feature!r}, but the batch has only {sorted(known)}"
                )
            index = known.index(slot.feature)
            self._check_range(slot, values[bounds[index] : bounds[index + 1]])

    def keys(self, features: KeyedJaggedTensor) -> list[torch.Tensor]:
        """Owner-major keys [num_ids] of each row space, slot after slot; `features` were checked."""
        values, bounds = features.values(), features.offset_per_key()
        place = {name: index for index, name in enumerate(features.keys())}
        keys = []
        for space, slots in zip(self._layout.spaces, self._layout.slots, strict=True):
            parts = []
            for slot in slots:
                index = place[slot.feature]
                ids = values[bounds[index] : bounds[index + 1]]
                parts.append(ids if slot.table.first_row == 0 else ids + slot.table.first_row)
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
            keys.append(space.owner_major(joined.to(torch.int64)))
        return keys

    def counts(self, features: KeyedJaggedTensor) -> list[list[int]]:
        """Ids of each slot, by row space."""
        bounds = features.offset_per_key()
        size = {name: bounds[i + 1] - bounds[i] for i, name in enumerate(features.keys())}
        return [[size[slot.feature] for slot in slots] for slots in self._layout.slots]

    def _check_range(self, slot: Slot, ids: torch.Tensor) -> None:
        if ids.numel() == 0:
            return
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= slot.table.num_rows:
            raise ValueError(
                f"rank {self._rank}: feature {slot.feature!r} has id {low if low < 0 else high}, but table "
                f"{slot.table.name!r} has {slot.table.num_rows} rows, ids 0 to {slot.table.num_rows - 1}; "
                "remap or hash the ids in the data pipeline"
            )


def by_module(slots: tuple[Slot, ...]) -> list[tuple[str, tuple[Slot, ...]]]:
    """Runs of slots of the same module, in layout order."""
    return [(module, tuple(run)) for module, run in groupby(slots, key=lambda slot: slot.module)]
