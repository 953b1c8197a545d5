"""Peak memory of a worker, above what its imports take, NestPipe against TorchRec: 1 GB of tables.

    python scripts/bench_memory.py
    python scripts/bench_memory.py --rows 400000           # a tenth of it

Each method runs in processes of its own; the peak is the operating system's (VmHWM).
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import uuid
from dataclasses import dataclass

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from baselines import registry
from baselines.interface import Setup
from nestpipe import RowWiseAdagrad

DIM, NUM_TABLES, NUM_SAMPLES, LENGTH, NUM_STEPS = 64, 2, 512, 40, 20


@dataclass(frozen=True)
class Job:
    """What a worker runs."""

    method: str
    num_rows: int


@dataclass
class Batch(Pipelineable):
    """Keys and nothing else."""

    sparse_features: KeyedJaggedTensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        return Batch(self.sparse_features.to(device, non_blocking))

    def pin_memory(self) -> Batch:
        return Batch(self.sparse_features.pin_memory())

    def record_stream(self, stream: torch.Stream) -> None:
        self.sparse_features.record_stream(stream)


class Rows(nn.Module):
    """Tables of the asked size under a linear layer."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.ec = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name=f"t{i}",
                    num_embeddings=num_rows // NUM_TABLES,
                    embedding_dim=DIM,
                    feature_names=[f"f{i}"],
                )
                for i in range(NUM_TABLES)
            ]
        )
        self.linear = nn.Linear(DIM, 1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.ec(batch.sparse_features)
        predicted = self.linear(rows["f0"].values()) + self.linear(rows["f1"].values())
        return (predicted**2).mean(), predicted.detach()


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(job: Job) -> float:
    """A worker: the peak above imports, in GB."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    method = registry.get(job.method)
    before = peak_bytes()
    generator = torch.Generator().manual_seed(dist.get_rank())
    lengths = torch.full((NUM_TABLES * NUM_SAMPLES,), LENGTH)
    ids = torch.randint(0, job.num_rows // NUM_TABLES, (int(lengths.sum()),), generator=generator)
    batch = Batch(KeyedJaggedTensor([f"f{i}" for i in range(NUM_TABLES)], ids, lengths=lengths))
    runner = method.build(
        Setup(
            model=Rows(job.num_rows),
            sparse_optimizer=RowWiseAdagrad(lr=0.01),
            dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        )
    )
    batches = itertools.repeat(batch)
    for _ in range(NUM_STEPS):
        runner.progress(batches)
    runner.drain()
    peak = peak_bytes() - before
    runner.close()
    dist.barrier()
    return peak / 1e9


def launch(job: Job, num_workers: int) -> float:
    """The largest peak of the workers, in GB."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    return max(elastic_launch(config, run)(job).values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000_000 // (4 * DIM), help="rows of all tables")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["torchrec", "sync", "nestpipe"])
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    peaks = {m: launch(Job(m, arguments.rows), arguments.workers) for m in arguments.methods}
    table = pd.DataFrame(
        [(m, arguments.rows * DIM * 4 / 1e9, gb, gb / peaks["torchrec"]) for m, gb in peaks.items()],
        columns=["method", "tables_gb", "peak_gb", "against_torchrec"],
    )
    print(table.to_string(index=False, float_format="%.2f"))


if __name__ == "__main__":
    main()
