"""Step time against ids a batch: must grow linearly. One worker, a table of a million rows of 32.

python scripts/bench_step_cost.py
python scripts/bench_step_cost.py --ids 10000 30000     # the small end alone
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import pandas as pd
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe import NestPipe, RowWiseAdagrad, schedules

NUM_ROWS, DIM, NUM_SAMPLES = 1_000_000, 32, 500


class SumOfRows(nn.Module):
    """As little dense work as gives every row a gradient."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(name="t", num_embeddings=NUM_ROWS, embedding_dim=DIM, feature_names=["f"])
        self.ec = EmbeddingCollection(tables=[table])
        self.scale = nn.Parameter(torch.ones(DIM))

    def forward(self, batch: KeyedJaggedTensor) -> tuple[torch.Tensor, None]:
        rows = self.ec(batch)["f"].values()
        return (rows.mean(0) * self.scale).sum(), None


def step_ms(num_ids: int, num_steps: int, micro_batches: int) -> float:
    """Median step time over the last `num_steps` steps."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.full((NUM_SAMPLES,), num_ids // NUM_SAMPLES)
    pool = [
        KeyedJaggedTensor(
            ["f"],
            (torch.rand(int(lengths.sum()), generator=generator) ** 3 * NUM_ROWS).long(),
            lengths=lengths,
        )
        for _ in range(4)
    ]
    with NestPipe(
        SumOfRows(),
        sparse_optimizer=RowWiseAdagrad(lr=0.01),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        schedule=schedules.nestpipe(micro_batches),
    ) as pipeline:
        batches = itertools.cycle(pool)
        stamps = []
        for _ in range(num_steps + 6):
            pipeline.progress(batches)
            stamps.append(time.perf_counter())
    steps = [1e3 * (after - before) for before, after in itertools.pairwise(stamps)]
    return statistics.median(steps[-num_steps:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, nargs="+", default=[10_000, 30_000, 100_000, 300_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for micro_batches, num_ids in itertools.product((1, 8), arguments.ids):
        ms = step_ms(num_ids, arguments.steps, micro_batches)
        rows.append((micro_batches, num_ids, ms, 1e6 * ms / num_ids))
    table = pd.DataFrame(rows, columns=["micro_batches", "ids", "step_ms", "ns_per_id"])
    print(table.to_string(index=False, float_format="%.1f"))


if __name__ == "__main__":
    main()
