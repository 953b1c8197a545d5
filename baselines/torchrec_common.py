"""What TorchRec's methods share: how tables are sharded, and what is given to the dense optimizer."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ModuleSharder, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.fused import EmptyFusedOptimizer

from baselines import fbgemm_cpu
from baselines.interface import Setup
from baselines.torchrec_optim import check_updates, fused_params
from baselines.torchrec_state import dense_parameters, load_tables, table_weights

Sharders = dict[type[nn.Module], ModuleSharder[Any]]


def make_sharders(setup: Setup, *, dedup: bool) -> Sharders:
    """Sharders of both collections, by module type.

    `dedup` sends each unique key of a worker's batch once. TorchRec offers it for EmbeddingCollection
    alone: a pooled row-wise exchange carries one partial sum a sample whatever its keys, so only the
    keys could shrink, and EmbeddingBagCollection stays as it is. Raises ValueError for updates that
    TorchRec cannot make, and for a device that FBGEMM's build here does not run on.
    """
    check_updates(setup)
    fbgemm_cpu.check_device(setup.device)
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


def make_dense_optimizer(model: DistributedModelParallel, setup: Setup) -> torch.optim.Optimizer:
    """The user's optimizer over what is not in a table; one that does nothing if all of it is."""
    parameters = list(dense_parameters(model).values())
    return setup.dense_optimizer(parameters) if parameters else EmptyFusedOptimizer()
