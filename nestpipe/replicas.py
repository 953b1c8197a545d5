"""Two-dimensional sparse parallelism (2D-SP): several groups of workers, each with all tables.

Keys and rows travel inside a group, so an All2All has few peers; each group updates its tables from
its own gradients. Every few steps the ranks that hold the same rows in different groups average them,
optimizer state included. Rows that none of them has updated since are equal already and do not move.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from nestpipe.averaging import with_average
from nestpipe.buffers import RowBuffer
from nestpipe.optim import SparseOptimizer
from nestpipe.schedule import Op
from nestpipe.table import HostTable
from nestpipe.transport import Transport, wait
from nestpipe.unique import shared_positions

# Rows are averaged and broadcast in pieces of about this size, so that memory stays bounded.
CHUNK_BYTES = 32 << 20


class Replicas:
    """This rank's tables and the same rows on the ranks of `transport`, averaged every `sync_every` steps.

    `mark` and `average` belong to the memory lane; `broadcast` to the caller's thread when nothing is in
    flight.
    """

    def __init__(
        self,
        tables: Sequence[HostTable],
        sparse_optimizer: SparseOptimizer,
        transport: Transport,
        sync_every: int = 1,
        device: torch.device | None = None,
    ) -> None:
        self._tables = list(tables)
        self._transport = transport
        self._sync_every = sync_every
        device = device or torch.device("cpu")
        self._touched = [
            torch.zeros(table.space.rows_per_rank, dtype=torch.bool, device=device) for table in tables
        ]
        self._blocks = [RowBuffer(t.space, sparse_optimizer, device) for t in tables]

    @property
    def is_first(self) -> bool:
        """Whether this rank belongs to rank 0's group, whose tables are the ones that are saved."""
        return self._transport.rank == 0

    def with_average(self, ops: Sequence[Op], step: int, num_trained: int) -> tuple[Op, ...]:
        """`ops`, issued at `step` after `num_trained` steps, with the averaging that ends it, if due.

        What reads rows waits for the averaging that ended the step before, if that was due.
        """
        return with_average(
            ops,
            step,
            follows_one=num_trained % self._sync_every == 0,
            ends_with_one=(num_trained + 1) % self._sync_every == 0,
        )

    def broadcast(self, rows: torch.Tensor) -> None:
        """A collective: overwrite `rows` [n, width], contiguous, with those of rank 0's group."""
        for part in rows.split(_num_rows(rows.element_size() * rows.shape[1])):
            self._transport.broadcast(part)

    def mark(self, buffers: Sequence[RowBuffer]) -> None:
        """Take note that the rows of `buffers` [row space] were updated."""
        for touched, buffer in zip(self._touched, buffers, strict=True):
            touched.index_fill_(0, buffer.keys, True)

    def average(self, ahead: Sequence[RowBuffer]) -> None:
        """A collective: average every row that was updated on any replica since the last time.

        `ahead` [row space], empty if there are none, are the buffers of a batch that was read before;
        their rows are replaced too.
        """
        self._unite_marks()
        for index, (table, block) in enumerate(zip(self._tables, self._blocks, strict=True)):
            rows = _marked(self._touched[index])
            for part in rows.split(_num_rows(table.row_bytes)) if rows.numel() else ():
                self._average_rows(table, block, part)
                if ahead:
                    ahead[index].copy_shared_rows(block, shared_positions(part, ahead[index].keys))
            self._touched[index].index_fill_(0, rows, False)

    def _average_rows(self, table: HostTable, block: RowBuffer, rows: torch.Tensor) -> None:
        block.resize(rows)
        table.read(rows, block.rows, block.state)
        values = [block.rows, *block.state.values()]
        for tensor, work in [(tensor, self._transport.all_reduce(tensor)) for tensor in values]:
            wait(work)
            tensor.div_(self._transport.size)
        table.write(rows, block.rows, block.state)

    def _unite_marks(self) -> None:
        """Mark what any replica has marked: by lists of rows where they are shorter than the marks."""
        own = [_marked(touched) for touched in self._touched]
        counts = self._transport.all_gather(torch.tensor([rows.numel() for rows in own]))
        for touched, rows, of_ranks in zip(self._touched, own, torch.stack(counts, 1).tolist(), strict=True):
            longest = max(of_ranks)
            if longest == 0:
                continue
            # A gathered list comes once from each rank; a ring reduces and then hands out every byte.
            if longest * rows.element_size() * len(of_ranks) < 2 * touched.numel():
                padded = torch.zeros(longest, dtype=rows.dtype, device=rows.device)
                padded[: rows.numel()] = rows
                for count, theirs in zip(of_ranks, self._transport.all_gather(padded), strict=True):
                    touched.index_fill_(0, theirs[:count], True)
            else:
                wait(self._transport.all_reduce(touched.view(torch.uint8), dist.ReduceOp.MAX))


def build_replicas(
    tables: Sequence[HostTable],
    sparse_optimizer: SparseOptimizer,
    transport: Transport | None,
    sync_every: int,
    device: torch.device | None = None,
) -> Replicas | None:
    """A collective: replicas that start from the same rows; None without a `transport` to others.

    Raises ValueError for `sync_every` below 1.
    """
    if sync_every < 1:
        raise ValueError(f"sync_every must be at least 1, got {sync_every}")
    if transport is None:
        return None
    replicas = Replicas(tables, sparse_optimizer, transport, sync_every, device)
    for table in tables:
        replicas.broadcast(table.weight)
    return replicas


def describe(num_workers: int, replicas: int, sync_every: int) -> str:
    """How the groups came out, in words."""
    if replicas == 1:
        return f"one group of {num_workers}, no replicas"
    every = "every step" if sync_every == 1 else f"every {sync_every} steps"
    return f"{replicas} groups of {num_workers // replicas}, averaged {every}"


def _num_rows(row_bytes: int) -> int:
    return max(1, CHUNK_BYTES // row_bytes)


def _marked(touched: torch.Tensor) -> torch.Tensor:
    """Positions of set marks, ascending; on the CPU numpy finds them twice as fast as torch."""
    if touched.device.type != "cpu":
        return touched.nonzero().view(-1)
    return torch.from_numpy(touched.numpy().nonzero()[0])
