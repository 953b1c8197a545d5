"""Row exchange (stage 5): rows of a micro-batch to the workers that asked, their gradients back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from nestpipe.buffers import RowBuffer, Scratch
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

    def wait(self) -> None:
        self.transfer.wait()
        # Added in sender order, then micro-batch order: a run is the same every time.
        self.buffer.gradients.index_add_(0, self.positions, self.transfer.received)


class RowExchange:
    """Starts the transfers of one row space; used by the comm lane alone.

    What is sent and received lies in memory that the same micro-batch of the next step uses again: by
    then, in the lane's order, this step's all-reduce has waited for every compute of the window.
    """

    def __init__(self, transport: Transport, scratch: Scratch) -> None:
        self._transport = transport
        self._scratch = scratch

    def send_rows(self, buffer: RowBuffer, route: MicroBatchRoute, micro_batch: int) -> RowTransfer:
        """Start the exchange of one micro-batch; `received` [num_requested, dim] in the route's order."""
        sent = self._scratch.take(f"send rows {micro_batch}", route.positions.numel())
        torch.index_select(buffer.rows, 0, route.positions, out=sent)
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
            return GradientTransfer(RowTransfer(gradients, gradients, None), buffer, route.positions)
        received = self._scratch.take(f"receive gradients {micro_batch}", route.positions.numel())
        work = self._transport.all_to_all(received, gradients, route.serve_splits, route.request_splits)
        return GradientTransfer(RowTransfer(received, gradients, work), buffer, route.positions)
