"""The emulated fabric: a torch.distributed backend whose collectives take a modelled time.

    fabric = register()
    dist.init_process_group("fabric")       # new_group and DeviceMesh inherit it
    fabric.set_costs(lambda group: LinkCost(bytes_per_ms=25e3, latency_ms=0.5))
    ...
    fabric.close()
    dist.destroy_process_group()

Every collective runs on gloo for real and is through at the later of two times: when gloo is, and when the
model says. The model: its clock starts when the last peer has joined; then this worker's link, one for
all its groups, is busy for bytes / bandwidth; then the latency passes, which occupies nothing.

When the last peer has joined is read from a board in shared memory (`joins`), on which each member
stamps the time before it hands a collective to gloo. So gloo's own transfer time is not added to the
modelled one but hidden under it, no message or round trip is spent on the clock, and a collective that
fails can say who is missing. It is also why the workers must share a machine.

The link belongs to the worker that sends: a worker to whom others send more than it sends itself
does not wait for their links.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from time import perf_counter
from typing import Any
from weakref import WeakSet

import torch.distributed as dist

from harness.emulation.group import FabricGroup
from harness.emulation.joins import open_board
from harness.emulation.ledger import Ledger
from harness.emulation.link import Costs, Group, Link, LinkCost, free
from harness.emulation.work import OpRecord

logger = logging.getLogger("nestpipe")

BACKEND = "fabric"


class Fabric:
    """This process's link and the groups that use it."""

    def __init__(self, costs: Costs = free) -> None:
        self._costs = costs
        self._link = Link()
        self._ledger = Ledger()
        self._groups: WeakSet[FabricGroup] = WeakSet()
        # A DDP module that outlives its group would destroy gloo with the GIL held, and wait there for a
        # gloo thread that may be waiting for the GIL. So gloo outlives them all.
        self._gloos: list[Any] = []

    def set_costs(self, costs: Costs) -> None:
        """What collectives cost that are issued from now on; those under way keep their cost."""
        self._costs = costs

    def take_log(self) -> list[OpRecord]:
        """Collectives that ended since the last call, in the order in which somebody saw them end."""
        return self._ledger.take()

    def close(self, timeout_s: float = 10.0) -> None:
        """Wait for what is under way and end all threads; call it before `destroy_process_group`.

        A collective that fails now has no one else to tell, so it is logged, and so is a thread that is
        still busy after `timeout_s`.
        """
        deadline_s = perf_counter() + timeout_s
        for work in self._ledger.under_way():
            try:
                work.wait(timedelta(seconds=max(1e-3, deadline_s - perf_counter())))
            except RuntimeError as error:
                logger.warning("while the fabric was closed: %s", error)
        for group in list(self._groups):
            if not group.stop_thread(max(0.1, deadline_s - perf_counter())):
                logger.warning("group %r of the fabric is still waiting for a peer", group.group_name)

    def make_group(self, options: Any, backend_options: Any) -> FabricGroup:
        """What torch.distributed calls for each new group; a collective of its members."""
        store, rank, size = options.store, options.group_rank, options.group_size
        # The default group comes without a list of ranks, and before there is a world to ask.
        ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
        world_size = dist.get_world_size() if options.global_ranks_in_group else size
        board = open_board(store, rank, size)
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
        gloo._set_sequence_number_for_group()
        group = FabricGroup(gloo, board, ranks, world_size, self._link, self._ledger, self._cost_of)
        self._groups.add(group)
        self._gloos.append(gloo)
        return group

    def _cost_of(self, group: Group) -> LinkCost:
        return self._costs(group)


def register(costs: Costs = free) -> Fabric:
    """Make "fabric" a backend of this process, before `init_process_group("fabric")`; all ranks call it.

    A second call replaces the first for groups that are made from then on.
    """
    fabric = Fabric(costs)
    dist.Backend.register_backend(BACKEND, fabric.make_group, extended_api=True, devices=["cpu"])
    return fabric
