"""Tables of a model that TorchRec has sharded: loading them, gathering them, reading a worker's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

_GATHER_BYTES = 64 * 2**20
"""Rows of a table that travel to rank 0 at once."""

_CHUNK_ROWS = 65536


def table_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Tables of an unsharded model by name, for `load_tables` once it is sharded.

    Raises ValueError for tables that FBGEMM's kernel cannot hold.
    """
    tables = {
        f"{path}.{name}".removeprefix("."): weight.detach()
        for path, module in model.named_modules()
        if type(module) in (EmbeddingCollection, EmbeddingBagCollection)
        for name, weight in module.named_parameters()
    }
    for name, weight in tables.items():
        if weight.dtype not in (torch.float32, torch.float16):
            raise ValueError(
                f"TorchRec's fused lookup holds float32 or float16 tables, {name} is {weight.dtype}"
            )
    return tables


def load_tables(model: DistributedModelParallel, tables: Mapping[str, torch.Tensor]) -> None:
    """Copy each worker's rows: TorchRec itself does so for EmbeddingCollection, but on a CPU leaves
    EmbeddingBagCollection with rows of its own drawing."""
    for path, module in sharded_modules(model).items():
        for table, first_row, shard in _local_shards(module):
            source = tables[_parameter_name(path, module, table)]
            shard.copy_(source[first_row : first_row + shard.shape[0]])


def sharded_modules(model: DistributedModelParallel) -> dict[str, Any]:
    """TorchRec's sharded collections by their path in the unsharded model."""
    return {path: m for path, m in model.module.named_modules() if isinstance(m, ShardedModule)}


def dense_parameters(model: DistributedModelParallel) -> dict[str, nn.Parameter]:
    """Parameters outside of the tables by their name in the unsharded model."""
    of_tables = {
        id(parameter) for module in sharded_modules(model).values() for parameter in module.parameters()
    }
    return {name: p for name, p in model.module.named_parameters() if id(p) not in of_tables}


def kernels(module: Any) -> Iterator[Any]:
    """The embedding kernels of a sharded collection on this worker."""
    for lookup in module._lookups:
        yield from lookup._emb_modules


def gather_state(model: DistributedModelParallel, *, num_replicas: int = 1) -> dict[str, torch.Tensor]:
    """On rank 0 copies of tables and dense parameters under the unsharded names, elsewhere {}.

    A collective that holds one chunk of a table at a time besides the result. Of 2D's replicas it
    reads the group of rank 0, whose members are `num_replicas` ranks apart.
    """
    is_root = dist.get_rank() == 0
    state: dict[str, torch.Tensor] = {}
    for path, module in sharded_modules(model).items():
        shards = {table: shard for table, _, shard in _local_shards(module)}
        for table, sharding in sorted(module.module_sharding_plan.items()):
            sizes = [shard.shard_sizes for shard in sharding.sharding_spec.shards]
            weight = _gather_table(shards.get(table), sizes, num_replicas)
            if is_root:
                state[_parameter_name(path, module, table)] = weight
    if is_root:
        dense = dense_parameters(model).items()
        state |= {name: parameter.detach().cpu().clone() for name, parameter in dense}
    return state


def rows_of(
    model: DistributedModelParallel, name: str, *, num_replicas: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Ids [n] and rows [n, dim], copies, of what this worker owns of a table, in chunks of ascending ids.

    `name` is the table's, or its parameter's in the unsharded model. Of 2D's replicas only the group of
    rank 0 gives rows. Raises ValueError for an unknown name and for one that several collections use.
    """
    path, table = _find_table(model, name)
    return _read_rows(sharded_modules(model)[path], table, dist.get_rank() % num_replicas == 0)


def _read_rows(module: Any, name: str, is_source: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for table, first_row, shard in _local_shards(module):
        if table != name or not is_source:
            continue
        for begin in range(0, shard.shape[0], _CHUNK_ROWS):
            rows = shard[begin : begin + _CHUNK_ROWS].clone()
            yield torch.arange(begin, begin + rows.shape[0]).add_(first_row), rows


def _find_table(model: DistributedModelParallel, name: str) -> tuple[str, str]:
    """The path of the collection that holds the table, and the table's name in it."""
    tables = {
        _parameter_name(path, module, table): (path, table)
        for path, module in sharded_modules(model).items()
        for table in module.module_sharding_plan
    }
    found = [parameter for parameter, (_, table) in tables.items() if name in (table, parameter)]
    if len(found) == 1:
        return tables[found[0]]
    if found:
        raise ValueError(
            f"{len(found)} tables are called {name!r}: ask for {' or '.join(map(repr, found))} instead"
        )
    known = sorted({table for _, table in tables.values()})
    nearest = get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ValueError(f"no table is called {name!r}: {hint}There are {', '.join(known)}")


def _parameter_name(path: str, module: Any, table: str) -> str:
    container = "embeddings" if hasattr(module, "embeddings") else "embedding_bags"
    return ".".join(part for part in (path, container, table, "weight") if part)


def _local_shards(module: Any) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Table, first row and rows of each shard on this worker."""
    for kernel in kernels(module):
        first_rows = {t.name: t.local_metadata.shard_offsets[0] for t in kernel.config.embedding_tables}
        for name, weight in kernel.named_split_embedding_weights():
            table = name.removesuffix(".weight")
            yield table, first_rows[table], weight.detach()


def _gather_table(local: torch.Tensor | None, sizes: list[list[int]], num_replicas: int) -> torch.Tensor:
    """The whole table on rank 0; `sizes` are (rows, dim) of each shard in order of rows."""
    rank, dim = dist.get_rank(), sizes[0][1]
    dtype = torch.float32 if local is None else local.dtype
    num_rows = sum(rows for rows, _ in sizes) if rank == 0 else 0
    table = torch.empty(num_rows, dim, dtype=dtype)
    chunk = max(1, _GATHER_BYTES // (dim * dtype.itemsize))
    first_row = 0
    for index, (rows, _) in enumerate(sizes):
        owner = index * num_replicas
        for begin in range(0, rows, chunk):
            end = min(begin + chunk, rows)
            if rank == owner:
                assert local is not None, "a rank owns rows that it does not hold"
                part = local[begin:end].cpu().contiguous()  # where the others receive it
            else:
                part = torch.empty(end - begin, dim, dtype=dtype)
            dist.broadcast(part, src=owner)
            if rank == 0:
                table[first_row + begin : first_row + end] = part
        first_row += rows
    return table
