"""Row exchange (stage 5): rows of a micro-batch to the workers that asked, their gradients back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from nestpipe.buffers import RowBuffer, Scratch
from nestpipe.kernels.gather import gather_rows
from nestpipe.kernels.scatter_add import SortedPositions, scatter_add_rows, sort_positions
from nestpipe.routing import MicroBatchRoute
from nestpipe.transport import Transport, wait


@dataclass
class RowTransfer:
    """An All2All of rows under way; keeps what it reads and writes alive."""

    received: torch.Tensor
    sent: torch.Tensor
    work: dist.Work | None

    def wait(self) -> None:
        wait(self.work)


@dataclass
class GradientTransfer:
    """An All2All of row gradients under way, added to the owner's buffer when it arrives."""

    transfer: RowTransfer
    buffer: RowBuffer
    positions: torch.Tensor
    sorted_positions: SortedPositions | None = None
    has_many_senders: bool = True

    def wait(self) -> None:
        self.transfer.wait()
        # Added in sender order, then micro-batch order: a run is the same every time. The positions of
        # one sender are unique, so its additions need no order.
        scatter_add_rows(
            self.buffer.gradients,
            self.positions,
            self.transfer.received,
            deterministic=self.has_many_senders,
            sorted_positions=self.sorted_positions,
        )


class RowExchange:
    """Starts the transfers of one row space; each is used by one thread alone, in training the comm lane.

    What is sent and received lies in memory that the same micro-batch of the next step uses again: by
    then, in the lane's order, this step's all-reduce has waited for every compute of the window.
    """

    def __init__(self, transport: Transport, scratch: Scratch) -> None:
        self._transport = transport
        self._scratch = scratch

    def send_rows(self, rows: torch.Tensor, route: MicroBatchRoute, micro_batch: int) -> RowTransfer:
        """Start the exchange of one micro-batch of `rows` [num_owner_rows, dim], those of the batch that
        this rank owns; `received` [num_requested, dim] in the route's order."""
        sent = self._scratch.take(f"send rows {micro_batch}", route.positions.numel())
        gather_rows(rows, route.positions, sent)
        if self._transport.size == 1:
            return RowTransfer(sent, sent, None)
        received = self._scratch.take(f"receive rows {micro_batch}", route.num_requested)
        work = self._transport.all_to_all(received, sent, route.request_splits, route.serve_splits)
        return RowTransfer(received, sent, work)

    def send_gradients(
        self, buffer: RowBuffer, route: MicroBatchRoute, micro_batch: int, gradients: torch.Tensor
    ) -> GradientTransfer:
        """Start the way back: `gradients` [num_requested, dim] of the rows that this rank received."""
        if self._transport.size == 1:
            own = RowTransfer(gradients, gradients, None)
            return GradientTransfer(own, buffer, route.positions, has_many_senders=False)
        received = self._scratch.take(f"receive gradients {micro_batch}", route.positions.numel())
        work = self._transport.all_to_all(received, gradients, route.serve_splits, route.request_splits)
        # On an accelerator the addition needs the positions sorted: done while the gradients travel.
        by_position = sort_positions(route.positions, len(buffer.rows))
        return GradientTransfer(RowTransfer(received, gradients, work), buffer, route.positions, by_position)
