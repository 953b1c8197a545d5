"""What TorchRec's methods share: how tables are sharded and updated, and how a sharded model is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ModuleSharder, ShardedModule, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.fused import EmptyFusedOptimizer

from baselines import fbgemm_cpu
from baselines.interface import Setup
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer

Sharders = dict[type[nn.Module], ModuleSharder[Any]]

_GATHER_BYTES = 64 * 2**20
"""Rows of a table that travel to rank 0 at once."""


def fused_params(optimizer: SparseOptimizer, device: torch.device) -> dict[str, Any]:
    """FBGEMM's settings for the same update; eps is always given, as its default is not everybody's.

    Raises ValueError for an optimizer that FBGEMM's kernel on this device does not have.
    """
    params: dict[str, Any] = {"learning_rate": optimizer.lr}
    if isinstance(optimizer, SGD):
        return params | {"optimizer": EmbOptimType.EXACT_SGD}
    if isinstance(optimizer, RowWiseAdagrad):
        return params | {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "eps": optimizer.eps}
    if isinstance(optimizer, Adagrad):
        return params | {"optimizer": EmbOptimType.EXACT_ADAGRAD, "eps": optimizer.eps}
    if isinstance(optimizer, Adam) and device.type != "cpu":
        beta1, beta2 = optimizer.betas
        return params | {
            "optimizer": EmbOptimType.ADAM,
            "beta1": beta1,
            "beta2": beta2,
            "eps": optimizer.eps,
        }
    raise ValueError(
        f"TorchRec's fused lookup on {device.type} has no {type(optimizer).__name__}: "
        "use SGD, RowWiseAdagrad or Adagrad for the tables"
    )


def make_sharders(setup: Setup, *, dedup: bool) -> Sharders:
    """Sharders of both collections, by module type.

    `dedup` sends each unique key of a worker's batch once. TorchRec offers it for EmbeddingCollection
    alone: a pooled row-wise exchange carries one partial sum a sample whatever its keys, so only the
    keys could shrink, and EmbeddingBagCollection stays as it is.
    """
    params = fused_params(setup.sparse_optimizer, setup.device)
    if dedup and setup.device.type == "cpu":
        fbgemm_cpu.register()
    return {
        EmbeddingCollection: EmbeddingCollectionSharder(dict(params), use_index_dedup=dedup),
        EmbeddingBagCollection: EmbeddingBagCollectionSharder(dict(params)),
    }


def row_wise_plan(
    model: nn.Module, sharders: Sharders, num_shards: int, device: torch.device
) -> ShardingPlan:
    """Every table of every collection cut into `num_shards` ranges of rows, with the fused kernel.

    Naming the kernel matters: without it TorchRec takes one that updates nothing in backward. Raises
    ValueError for a model without collections.
    """
    plan: dict[str, Any] = {}
    for path, module in model.named_modules():
        sharder = sharders.get(type(module))
        if sharder is None:
            continue
        cut = row_wise(compute_kernel=EmbeddingComputeKernel.FUSED.value)
        tables = dict.fromkeys(sharder.shardable_parameters(module), cut)
        plan[path] = construct_module_sharding_plan(
            module, tables, sharder, num_shards, num_shards, device.type
        )
    if not plan:
        raise ValueError("the model has no EmbeddingCollection or EmbeddingBagCollection to shard")
    return ShardingPlan(plan)


def shard(setup: Setup, *, dedup: bool) -> DistributedModelParallel:
    """The model with its tables sharded over all workers and the rest in DDP; a collective."""
    sharders = make_sharders(setup, dedup=dedup)
    plan = row_wise_plan(setup.model, sharders, dist.get_world_size(), setup.device)
    tables = table_weights(setup.model)
    model = DistributedModelParallel(
        setup.model, device=setup.device, plan=plan, sharders=list(sharders.values())
    )
    load_tables(model, tables)
    return model


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
        for kernel in _kernels(module):
            first_rows = {t.name: t.local_metadata.shard_offsets[0] for t in kernel.config.embedding_tables}
            for name, shard in kernel.named_split_embedding_weights():
                table = name.removesuffix(".weight")
                begin = first_rows[table]
                source = tables[_table_name(path, module, table)]
                shard.detach().copy_(source[begin : begin + shard.shape[0]])


def make_dense_optimizer(model: DistributedModelParallel, setup: Setup) -> torch.optim.Optimizer:
    """The user's optimizer over what is not in a table; one that does nothing if all of it is."""
    parameters = list(dense_parameters(model).values())
    return setup.dense_optimizer(parameters) if parameters else EmptyFusedOptimizer()


def sharded_modules(model: DistributedModelParallel) -> dict[str, Any]:
    """TorchRec's sharded collections by their path in the unsharded model."""
    return {path: m for path, m in model.module.named_modules() if isinstance(m, ShardedModule)}


def dense_parameters(model: DistributedModelParallel) -> dict[str, nn.Parameter]:
    """Parameters outside of the tables by their name in the unsharded model."""
    of_tables = {
        id(parameter) for module in sharded_modules(model).values() for parameter in module.parameters()
    }
    return {name: p for name, p in model.module.named_parameters() if id(p) not in of_tables}


def gather_state(model: DistributedModelParallel, *, num_replicas: int = 1) -> dict[str, torch.Tensor]:
    """On rank 0 copies of tables and dense parameters under the unsharded names, elsewhere {}.

    A collective that holds one chunk of a table at a time besides the result. Of 2D's replicas it
    reads the group of rank 0, whose members are `num_replicas` ranks apart.
    """
    is_root = dist.get_rank() == 0
    state: dict[str, torch.Tensor] = {}
    for path, module in sharded_modules(model).items():
        shards = dict(_local_shards(module))
        for table, sharding in sorted(module.module_sharding_plan.items()):
            sizes = [shard.shard_sizes for shard in sharding.sharding_spec.shards]
            weight = _gather_table(shards.get(table), sizes, num_replicas)
            if is_root:
                state[_table_name(path, module, table)] = weight
    if is_root:
        dense = dense_parameters(model).items()
        state |= {name: parameter.detach().cpu().clone() for name, parameter in dense}
    return state


def _table_name(path: str, module: Any, table: str) -> str:
    container = "embeddings" if hasattr(module, "embeddings") else "embedding_bags"
    return ".".join(part for part in (path, container, table, "weight") if part)


def _kernels(module: Any) -> Iterator[Any]:
    for lookup in module._lookups:
        yield from lookup._emb_modules


def _local_shards(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for kernel in _kernels(module):
        for name, weight in kernel.named_split_embedding_weights():
            yield name.removesuffix(".weight"), weight.detach()


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
                part = local[begin:end].contiguous()
            else:
                part = torch.empty(end - begin, dim, dtype=dtype)
            dist.broadcast(part, src=owner)
            if rank == 0:
                table[first_row + begin : first_row + end] = part
        first_row += rows
    return table
