"""What workers of the fabric's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from harness.emulation.fabric import BACKEND, Fabric, register
from harness.emulation.link import Costs, free

TIMEOUT = timedelta(seconds=30)


@contextmanager
def fabric(costs: Costs = free, timeout: timedelta = TIMEOUT) -> Iterator[Fabric]:
    """A default group of the fabric in place of the worker's own, once a worker."""
    store = dist.distributed_c10d._get_default_store()
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    dist.barrier()  # a peer may still be connecting to the group that goes
    dist.destroy_process_group()
    made = register()
    own_store = dist.PrefixStore("fabric", store)
    dist.init_process_group(BACKEND, store=own_store, rank=rank, world_size=num_workers, timeout=timeout)
    made.set_costs(costs)
    yield made
    made.set_costs(free)
    dist.barrier()
    made.close()
    dist.destroy_process_group()
