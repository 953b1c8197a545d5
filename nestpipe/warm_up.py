"""Each group's first collective and each kernel's first launch, on an accelerator, before lanes start.

NCCL makes a communicator at a group's first collective. CUDA loads a kernel at its first launch and may wait
for the device to be idle, also for a transfer that waits for another rank. Lanes would come to both in an
order of their own on every rank, and ranks could wait for each other for ever. So both happen here, on
the caller's thread, in one order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nestpipe.buffers import RowBuffer
from nestpipe.exchange import RowExchange
from nestpipe.kernels.expand import expand_rows
from nestpipe.routing import Flag, SpaceRoute
from nestpipe.stages import Engine
from nestpipe.table import HostTable
from nestpipe.transport import wait
from nestpipe.unique import Shared

Part = tuple[HostTable, RowExchange, list[RowBuffer], SpaceRoute, Shared]


def warm_up(engine: Engine) -> None:
    """A collective: look a row of each owner up and bring zero gradients back; tables stay as they are."""
    for part in _parts(engine):
        _warm_up_space(engine, *part)
    transports = engine.transports
    engine.updates.flat.reduce(transports.dense).wait()
    for transport in (transports.control, transports.replicas):
        if transport is not None:
            wait(transport.all_reduce(torch.zeros(1, device=engine.device)))
    mark = engine.streams.mark()
    if mark is not None:
        mark.wait()


def _parts(engine: Engine) -> Iterator[Part]:
    """Of each row space what a step has, routed twice so that two batches share their rows."""
    keys = [[_a_key_an_owner(table, engine.device)] for table in engine.tables]
    first = engine.router.route(keys, 1, Flag.BATCH)
    second = engine.router.route(keys, 1, Flag.BATCH, first)
    for index, table in enumerate(engine.tables):
        buffers = [slot[index] for slot in engine.buffers]
        yield table, engine.exchanges[index], buffers, second.spaces[index], second.shared[index]


def _a_key_an_owner(table: HostTable, device: torch.device) -> torch.Tensor:
    space = table.space
    return space.owner_major(torch.arange(min(space.num_rows, space.num_ranks), device=device))


def _warm_up_space(
    engine: Engine,
    table: HostTable,
    exchange: RowExchange,
    buffers: list[RowBuffer],
    route: SpaceRoute,
    shared: Shared,
) -> None:
    for buffer in buffers:
        buffer.resize(route.owner_rows)
        table.read(route.owner_rows, buffer.rows, buffer.state)
    active, prefetch, (part,) = buffers[0], buffers[-1], route.micro_batches
    sent = exchange.send_rows(active.rows, part, 0)
    sent.wait()
    rows = sent.received.detach().requires_grad_()
    expand_rows(rows, part.inverse).sum().backward()
    returned = exchange.send_gradients(active, part, 0, torch.zeros_like(rows))
    returned.wait()
    table.write(route.owner_rows, active.rows, active.state)
    engine.updates.update_rows(active, 0, None)
    prefetch.copy_shared_rows(active, shared)
