"""Each group's first collective and each kernel's first launch, on an accelerator, before lanes start.

NCCL makes a communicator at a group's first collective. CUDA loads a kernel at its first launch and may wait
for the device to be idle, also for a transfer that waits for another rank. Lanes would come to both in an
order of their own on every rank, and ranks could wait for each other for ever. So both happen here, on
the caller's thread, in one order. What the model itself computes with is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from nestpipe.buffers import RowBuffer, Scratch
from nestpipe.embedding import RowsOfEmbeddingBagCollection
from nestpipe.exchange import RowExchange
from nestpipe.kernels.copy_rows import copy_rows
from nestpipe.kernels.expand import expand_rows
from nestpipe.kernels.gather import gather_rows
from nestpipe.kernels.pool import pool_rows
from nestpipe.kernels.scatter_add import scatter_add_rows
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer
from nestpipe.routing import Flag, RowSpace, SpaceRoute
from nestpipe.stages import Engine
from nestpipe.table import HostTable
from nestpipe.transport import Transport, wait
from nestpipe.unique import Shared

NUMS_OF_IDS = (1, 128)
"""From 128 on, sums of rows go through partial ones (`kernels.pool`)."""
NUMS_OF_ROWS = (1, 2**15)
"""From 2**15 on, positions are sorted as 32-bit numbers (`kernels.occurrences`)."""


def warm_up(engine: Engine) -> None:
    """A collective: look a row of each owner up and bring zero gradients back; nothing is changed.

    In memory of its own: what lanes use must have been allocated on their streams.
    """
    optimizer, device = engine.updates.sparse_optimizer, engine.device
    keys = [[_a_key_an_owner(table.space, device)] for table in engine.tables]
    # Twice, so that there are two batches that share rows.
    routed = engine.router.route(keys, 1, Flag.BATCH)
    routed = engine.router.route(keys, 1, Flag.BATCH, routed)
    for table, route, shared in zip(engine.tables, routed.spaces, routed.shared, strict=True):
        _move_rows(engine.transports.comm, table, optimizer, route, shared)
        _compute(table.space, optimizer, device)
    _pool(engine)
    engine.updates.flat.reduce(engine.transports.dense).wait()
    for transport in (engine.transports.control, engine.transports.shards, engine.transports.replicas):
        if transport is not None:
            wait(transport.all_reduce(torch.zeros(1, device=device)))
    mark = engine.streams.mark()
    if mark is not None:
        mark.wait()


def _a_key_an_owner(space: RowSpace, device: torch.device) -> torch.Tensor:
    return space.owner_major(torch.arange(min(space.num_rows, space.num_ranks), device=device))


def _move_rows(
    transport: Transport, table: HostTable, optimizer: SparseOptimizer, route: SpaceRoute, shared: Shared
) -> None:
    """Between table, buffers and ranks; rows return to the table as they came."""
    space, keys, (part,) = table.space, route.owner_rows, route.micro_batches
    active, prefetch = (RowBuffer(space, optimizer, keys.device) for _ in range(2))
    for buffer in (active, prefetch):
        buffer.resize(keys)
        for name, rows in {"": buffer.rows, **buffer.state}.items():
            in_table = table.state[name] if name else table.weight
            gather_rows(in_table, keys, rows)
            copy_rows(rows, None, in_table, keys)
    prefetch.copy_shared_rows(active, shared)
    exchange = RowExchange(transport, Scratch(space.dim, space.dtype, keys.device))
    sent = exchange.send_rows(active.rows, part, 0)
    sent.wait()
    exchange.send_gradients(active, part, 0, torch.zeros_like(sent.received)).wait()


def _compute(space: RowSpace, optimizer: SparseOptimizer, device: torch.device) -> None:
    """What the engine computes of rows; an optimizer of the user's own is left alone."""
    for rows, ids in _rows_and_ids(space, device):
        with torch.enable_grad():
            expand_rows(rows, ids).sum().backward()
        scatter_add_rows(
            rows.detach(), ids, torch.zeros(len(ids), space.dim, dtype=space.dtype, device=device)
        )
    if isinstance(optimizer, SGD | RowWiseAdagrad | Adagrad | Adam):
        buffer = RowBuffer(space, optimizer, device)
        buffer.resize(torch.zeros(1, dtype=torch.int64, device=device))
        for tensor in (buffer.rows, *buffer.state.values()):
            tensor.zero_()
        optimizer.update(buffer.rows, buffer.state, buffer.gradients, 1)


def _pool(engine: Engine) -> None:
    """As the model's pooled lookups do."""
    modules = (m for m in engine.model.modules() if isinstance(m, RowsOfEmbeddingBagCollection))
    for index, mode, is_weighted in sorted({kind for module in modules for kind in module.kinds()}):
        for rows, ids in _rows_and_ids(engine.tables[index].space, engine.device):
            weights = rows.new_zeros(len(ids)) if is_weighted else None
            offsets = torch.arange(2, device=engine.device) * len(ids)
            with torch.enable_grad():
                pool_rows(rows, ids, offsets, mode, weights).sum().backward()


def _rows_and_ids(space: RowSpace, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows that need a gradient and positions among them, few and many of both."""
    for num_rows, num_ids in product(NUMS_OF_ROWS, NUMS_OF_IDS):
        rows = torch.zeros(num_rows, space.dim, dtype=space.dtype, device=device, requires_grad=True)
        yield rows, torch.zeros(num_ids, dtype=torch.int64, device=device)
