"""TorchRec's 2D sparse parallelism: tables sharded inside a group of workers, groups as replicas."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torch.distributed.remote_device import _remote_device
from torchrec.distributed.model_parallel import DistributedModelParallel, DMPCollection, DMPCollectionContext
from torchrec.distributed.train_pipeline import TrainPipelineBase
from torchrec.distributed.types import ShardingEnv2D, ShardingPlan, ShardingStrategy

from baselines.interface import Method, Setup
from baselines.torchrec_common import make_dense_optimizer, make_sharders, row_wise_plan
from baselines.torchrec_runner import TorchRecRunner
from baselines.torchrec_state import load_tables, table_weights
from nestpipe.optim import SGD


class CpuDMPCollection(DMPCollection):
    """DMPCollection without its check for CUDA: the constructor's steps, with its own helpers.

    Everything that trains is inherited; only how a CPU shard is placed differs, as a CPU has no index.
    """

    def __init__(
        self, setup: Setup, plan: ShardingPlan, sharders: list[Any], group_size: int, has_state: bool
    ) -> None:
        num_workers = dist.get_world_size()
        self._device = setup.device
        self._pg = dist.group.WORLD
        self._global_rank = dist.get_rank()
        self._custom_all_reduce = None
        self._use_sharded_relay = False
        self._has_state = has_state
        context = DMPCollectionContext(
            module=None, plan=plan, sharding_group_size=group_size, sharding_strategy=ShardingStrategy.DEFAULT
        )
        self._default_ctx, self._ctxs = context, [context]
        self._submodule_ctxs: list[DMPCollectionContext] = []
        context.device_mesh, context.sharding_pg, context.replica_pg = self._create_process_groups(
            self._global_rank, num_workers, group_size
        )
        self._remap_sharding_plan(plan, self._global_rank, num_workers // group_size, group_size)
        environment = ShardingEnv2D(
            global_pg=self._pg,
            sharding_pg=context.sharding_pg,
            replica_pg=context.replica_pg,
            device_mesh=context.device_mesh,
            sharding_strategy=context.sharding_strategy,
        )
        DistributedModelParallel.__init__(self, setup.model, environment, setup.device, plan, sharders)
        self._group_sharded_modules(self._ctxs)
        self._cache_sync_tensors(self._ctxs)

    def _remap_sharding_plan(
        self, plan: ShardingPlan, rank: int, step: int, sharding_group_size: int, *_: Any
    ) -> None:
        super()._remap_sharding_plan(plan, rank, step, sharding_group_size)
        if self._device.type != "cpu":
            return
        for tables in plan.plan.values():
            for table in tables.values():
                assert isinstance(table.sharding_spec, EnumerableShardingSpec)
                for shard in table.sharding_spec.shards:
                    assert shard.placement is not None
                    shard.placement = _remote_device(f"rank:{shard.placement.rank()}/{self._device.type}")

    def _cache_sync_tensors(self, contexts: list[DMPCollectionContext]) -> None:
        if self._has_state:
            super()._cache_sync_tensors(contexts)
            return
        # TorchRec asks every kernel for optimizer state, which SGD's refuses.
        for context in contexts:
            weights = [w for kernel, _ in context.modules_to_sync for w in kernel.split_embedding_weights()]
            context.weights_by_dtype = {weights[0].dtype: weights}
            context.optimizer_tensors_by_dtype = {}
            context.hash_zch_modules = []


class TwoD(Method):
    """`replicas` groups of workers (default 2), each with all tables, averaged every `sync_every` steps."""

    name = "2d-sp"
    summary = "TorchRec's 2D sparse parallelism: replicas of sharding groups"
    exactness = None
    """Replicas update a row from their own gradients and are averaged: other arithmetic by design."""

    def build(self, setup: Setup) -> TorchRecRunner:
        """Shard the model inside each group; a collective.

        One worker makes one group whatever `replicas` says. Raises ValueError where `replicas` does not
        divide the number of workers.
        """
        num_workers = dist.get_world_size()
        replicas = _positive(setup, "replicas", 2) if num_workers > 1 else 1
        sync_every = _positive(setup, "sync_every", 1)
        if num_workers % replicas:
            raise ValueError(
                f"2d-sp: {num_workers} workers cannot be split into replicas={replicas} equal groups; "
                f"choose replicas that divide {num_workers}"
            )
        group_size = num_workers // replicas
        sharders = make_sharders(setup, dedup=True)
        plan = row_wise_plan(setup.model, sharders, group_size, setup.device)
        tables = table_weights(setup.model)
        has_state = not isinstance(setup.sparse_optimizer, SGD)
        model = CpuDMPCollection(setup, plan, list(sharders.values()), group_size, has_state)
        load_tables(model, tables)
        optimizer = make_dense_optimizer(model, setup)
        pipeline = TrainPipelineBase(model, optimizer, setup.device)
        return TorchRecRunner(
            setup,
            model,
            optimizer,
            pipeline,
            note=_note(replicas, group_size, sync_every),
            sync_replicas=model.sync if replicas > 1 else None,
            sync_every=sync_every,
            num_replicas=replicas,
        )


def _positive(setup: Setup, name: str, default: int) -> int:
    value = setup.options.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"2d-sp: {name} must be a whole number of at least 1, got {value!r}")
    return value


def _note(replicas: int, group_size: int, sync_every: int) -> str:
    if replicas == 1:
        return f"one group of {group_size}, no replicas"
    every = "every step" if sync_every == 1 else f"every {sync_every} steps"
    return f"{replicas} groups of {group_size}, averaged {every}"


TWO_D = TwoD()
