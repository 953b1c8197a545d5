"""TorchRec's own TrainPipelineSparseDist traces and trains the models, on real process groups."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from baselines.torchrec_state import load_tables, table_weights
from tests.distributed import run_workers
from tests.workloads.test_movielens import write
from workloads import registry
from workloads.interface import Workload

CPU = torch.device("cpu")
# The planner offers rows of sequences on a CPU, and pooled features by whole tables only.
SHARDING_TYPES = ["row_wise", "table_wise"]
TABLES = {"synthetic": ("table_0", "table_1"), "movielens": ("item",)}


class WithLoss(nn.Module):
    """Hands the loss back as output too: the pipeline returns only the output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch):
        loss, output = self.model(batch)
        return loss, (loss.detach(), output.detach())


def create(name: str, settings: dict[str, str], num_workers: int, cache_dir: str) -> Workload:
    return registry.create(name, settings, seed=4, num_workers=num_workers, cache_dir=Path(cache_dir))


def sharded(model: nn.Module, num_workers: int, tables: tuple[str, ...]) -> DistributedModelParallel:
    fused = {"learning_rate": 0.0}
    sharders = [EmbeddingCollectionSharder(fused), EmbeddingBagCollectionSharder(fused)]
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=num_workers, compute_device="cpu"),
        constraints={table: ParameterConstraints(sharding_types=SHARDING_TYPES) for table in tables},
    )
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    rows = table_weights(model)
    parallel = DistributedModelParallel(model, device=CPU, plan=plan, sharders=sharders)
    load_tables(parallel, rows)
    return parallel


def train(rank: int, num_workers: int, name: str, settings: dict[str, str], cache_dir: str) -> list[float]:
    """Largest differences of loss and output from the unsharded model, over a few steps without learning."""
    workload = create(name, settings, num_workers, cache_dir)
    reference = workload.model(CPU)
    model = sharded(WithLoss(workload.model(CPU)), num_workers, TABLES[name])
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.0)
    pipeline = TrainPipelineSparseDist(model, optimizer, CPU, execute_all_batches=True)
    batches = workload.batches(rank=rank, num_workers=num_workers)
    differences = []
    for _, batch in zip(range(3), workload.batches(rank=rank, num_workers=num_workers), strict=False):
        loss, output = pipeline.progress(batches)
        expected_loss, expected_output = reference(batch)
        differences += [(loss - expected_loss).abs().item(), (output - expected_output).abs().max().item()]
    assert len(pipeline._pipelined_modules) == 1
    return differences


CLICKS = {"preset": "tiny", "num_tables": "2", "mean_length": "1"}
SEQUENCES = {"max_length": "9", "num_negatives": "3", "batch_size": "2", "dropout": "0.2"}


@pytest.mark.parametrize(
    ("name", "settings", "num_workers"),
    [
        ("synthetic", CLICKS, 1),
        ("synthetic", CLICKS, 2),
        ("synthetic", {**CLICKS, "model": "dlrm"}, 2),
        ("movielens", SEQUENCES, 1),
        ("movielens", SEQUENCES, 2),
        ("movielens", {**SEQUENCES, "model": "fuxi"}, 2),
        ("movielens", {**SEQUENCES, "model": "sasrec", "embedding_dropout": "0.1"}, 2),
    ],
)
def test_sharded_and_pipelined_equals_unsharded(
    tmp_path: Path, name: str, settings: dict[str, str], num_workers: int
):
    if name == "movielens":
        settings = {**settings, "path": str(write(tmp_path, "u.data"))}
    for differences in run_workers(train, num_workers, name, settings, str(tmp_path / "cache"), timeout_s=60):
        assert max(differences) < 1e-5
