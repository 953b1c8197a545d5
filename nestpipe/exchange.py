"""Row exchange (stage 5): rows of a micro-batch to the workers that asked, their gradients back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from nestpipe.buffers import RowBuffer
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


def send_rows(transport: Transport, buffer: RowBuffer, route: MicroBatchRoute) -> RowTransfer:
    """Start the exchange of one micro-batch; `received` [num_requested, dim] in the route's order."""
    sent = buffer.rows.index_select(0, route.positions)
    if transport.size == 1:
        return RowTransfer(sent, sent, None)
    received = torch.empty(route.num_requested, sent.shape[1], dtype=sent.dtype, device=sent.device)
    work = transport.all_to_all(received, sent, route.request_splits, route.serve_splits)
    return RowTransfer(received, sent, work)


def send_gradients(
    transport: Transport, buffer: RowBuffer, route: MicroBatchRoute, gradients: torch.Tensor
) -> GradientTransfer:
    """Start the way back: `gradients` [num_requested, dim] of the rows that this rank received."""
    if transport.size == 1:
        return GradientTransfer(RowTransfer(gradients, gradients, None), buffer, route.positions)
    received = torch.empty(
        sum(route.serve_splits), gradients.shape[1], dtype=gradients.dtype, device=gradients.device
    )
    work = transport.all_to_all(received, gradients, route.serve_splits, route.request_splits)
    return GradientTransfer(RowTransfer(received, gradients, work), buffer, route.positions)
