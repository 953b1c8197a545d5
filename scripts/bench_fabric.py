"""What the emulated fabric adds to a step's collectives where it models nothing, against plain gloo.

python scripts/bench_fabric.py
python scripts/bench_fabric.py --workers 4 --rounds 10

Both backends run in the same processes, in turns. `added_ms` is the median over the rounds of the difference
of two neighbouring turns, for one step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import pandas as pd
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from harness.emulation.fabric import BACKEND, register

KEYS_BYTES, ROWS_BYTES, DENSE_BYTES = 2_000, 200_000, 40_000


def make_step(group: dist.ProcessGroup, num_micro_batches: int) -> Callable[[], None]:
    """A step's collectives: counts, keys, then rows there and back a micro-batch, then one all-reduce.

    One transfer is in flight behind the one that is waited for; the all-reduce ends in a future, as DDP's.
    """
    keys, keys_in = (
        torch.zeros(KEYS_BYTES // 8, dtype=torch.int64),
        torch.zeros(KEYS_BYTES // 8, dtype=torch.int64),
    )
    rows = torch.zeros(ROWS_BYTES // 4 // num_micro_batches)
    inputs = [torch.zeros_like(rows) for _ in range(2 * num_micro_batches)]
    dense = torch.zeros(DENSE_BYTES // 4)

    def step() -> None:
        dist.all_to_all_single(keys_in[: group.size()], keys[: group.size()], group=group)
        dist.all_to_all_single(keys_in, keys, group=group)
        under_way = None
        for received in inputs:
            work = dist.all_to_all_single(received, rows, group=group, async_op=True)
            if under_way is not None:
                under_way.wait()
            under_way = work
        assert under_way is not None
        under_way.wait()
        dist.all_reduce(dense, group=group, async_op=True).get_future().wait()

    return step


def time_steps(step: Callable[[], None], num_steps: int) -> float:
    """Milliseconds a step."""
    dist.barrier()
    begin_s = time.perf_counter()
    for _ in range(num_steps):
        step()
    return 1e3 * (time.perf_counter() - begin_s) / num_steps


def worker(rank: int, num_workers: int, rendezvous: str, num_rounds: int, num_steps: int) -> None:
    torch.set_num_threads(1)
    fabric = register()
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=num_workers)
    plain, modelled = dist.new_group(), dist.new_group(backend=BACKEND)
    table = []
    for num_micro_batches in (1, 2, 8):
        steps = [make_step(group, num_micro_batches) for group in (plain, modelled)]
        for step in steps:
            time_steps(step, num_steps)
        turns = [[time_steps(step, num_steps) for step in steps] for _ in range(num_rounds)]
        gloo_ms, fabric_ms = (statistics.median(column) for column in zip(*turns, strict=True))
        added_ms = statistics.median(after - before for before, after in turns)
        table.append((3 + 2 * num_micro_batches, gloo_ms, fabric_ms, fabric_ms / gloo_ms, added_ms))
    fabric.close()
    dist.destroy_process_group()
    if rank == 0:
        columns = ["collectives", "gloo_ms", "fabric_ms", "ratio", "added_ms"]
        print(pd.DataFrame(table, columns=columns).to_string(index=False, float_format="%.2f"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30, help="steps a turn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = (arguments.workers, f"{folder}/rendezvous", arguments.rounds, arguments.steps)
        mp.spawn(worker, options, nprocs=arguments.workers)


if __name__ == "__main__":
    main()
