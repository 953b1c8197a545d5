"""Dense parameters: gradients in one flat tensor, averaged over the workers once a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from nestpipe.clipping import scale
from nestpipe.transport import Transport, wait


@dataclass
class FlatReduction:
    """An all-reduce of flat gradients under way; averages when it arrives."""

    flats: list[torch.Tensor]
    works: list[dist.Work | None]
    num_workers: int

    def wait(self) -> None:
        for flat, work in zip(self.flats, self.works, strict=True):
            wait(work)
            if self.num_workers > 1:
                flat.div_(self.num_workers)


class FlatGradients:
    """Every dense gradient as a view of one flat tensor a dtype, so that one all-reduce moves them all.

    Gradients accumulate over the micro-batches of a window; a parameter that took no part has zeros.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self._flats: list[torch.Tensor] = []
        self._views: list[torch.Tensor] = []
        views: dict[nn.Parameter, torch.Tensor] = {}
        for dtype in dict.fromkeys(p.dtype for p in self._parameters):
            mine = [p for p in self._parameters if p.dtype == dtype]
            flat = torch.zeros(sum(p.numel() for p in mine), dtype=dtype, device=mine[0].device)
            self._flats.append(flat)
            views.update(
                (p, piece.view_as(p))
                for p, piece in zip(mine, flat.split([p.numel() for p in mine]), strict=True)
            )
        self._views = [views[p] for p in self._parameters]
        self.zero()

    def zero(self) -> None:
        """Start a window: zero gradients, and put the views back where an optimizer dropped them."""
        for flat in self._flats:
            flat.zero_()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view

    def squared_norm(self, device: torch.device) -> torch.Tensor:
        """Of all gradients together, float64 [] on their `device`."""
        norms = [torch.linalg.vector_norm(flat, dtype=torch.float64) for flat in self._flats]
        return sum((norm.square() for norm in norms), torch.zeros((), dtype=torch.float64, device=device))

    def scale(self, factor: torch.Tensor) -> None:
        """Multiply every gradient by `factor` []."""
        for flat in self._flats:
            scale(flat, factor)

    def reduce(self, transport: Transport) -> FlatReduction:
        """Start averaging over the workers."""
        return FlatReduction(self._flats, [transport.all_reduce(f) for f in self._flats], transport.size)


def broadcast_dense(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give every worker rank 0's dense parameters and buffers, as DistributedDataParallel does."""
    if group is None:
        return
    source = dist.get_process_group_ranks(group)[0]
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.data, source, group=group)
