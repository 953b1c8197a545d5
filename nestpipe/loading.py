"""Initial rows: from the model's own tables into the shards, or made by `init_fn` for meta tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nestpipe.layout import Collection, Layout, Table, table_parameter
from nestpipe.table import HostTable


@dataclass(frozen=True)
class OwnedRows:
    """A rank's rows of one table: ids first_id, first_id + num_ranks, ... lie one behind the other."""

    first_id: int
    num_ranks: int
    first_local: int
    count: int

    @property
    def ids(self) -> slice:
        """The ids, as a slice of the table."""
        return slice(self.first_id, None, self.num_ranks)

    @property
    def local(self) -> slice:
        """Where they lie in the rank's part of the row space."""
        return slice(self.first_local, self.first_local + self.count)


def owned_rows(table: Table, num_ranks: int, rank: int) -> OwnedRows:
    """Which rows of `table` the rank owns (row k of a row space belongs to rank k mod num_ranks)."""
    first_id = (rank - table.first_row) % num_ranks
    count = max(0, -(-(table.num_rows - first_id) // num_ranks))
    return OwnedRows(first_id, num_ranks, (table.first_row + first_id) // num_ranks, count)


def load_initial_rows(
    tables: Sequence[HostTable], layout: Layout, collections: dict[str, Collection], rank: int
) -> None:
    """Fill this rank's shards; a single table on a single worker is taken over without a copy."""
    for table in layout.tables:
        source = table_parameter(collections[table.module], table.name).detach()
        shard = tables[table.space]
        owned = owned_rows(table, shard.space.num_ranks, rank)
        if source.is_meta:
            with torch.no_grad():
                table.config.init_fn(shard.weight[owned.local])
        elif owned.count == shard.space.num_rows and _can_be_taken(source, shard):
            shard.weight = source
        else:
            shard.weight[owned.local] = source[owned.ids].to(shard.weight.device)


def _can_be_taken(source: torch.Tensor, shard: HostTable) -> bool:
    """Whether a model's own table is as a shard must be."""
    return source.is_contiguous() and source.device.type == "cpu" and not shard.is_pinned
