"""One batch on its way through the pipeline: what each stage leaves for the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from nestpipe.batching import MicroBatch, merge_outputs
from nestpipe.buffers import RowBuffer
from nestpipe.exchange import RowTransfer
from nestpipe.routing import MicroBatchRoute, Routed, SpaceRoute
from nestpipe.schedule import Schedule
from nestpipe.stream import BatchStream
from nestpipe.unique import Shared


@dataclass
class StepState:
    """One batch on its way through the pipeline."""

    step: int
    schedule: Schedule
    stream: BatchStream
    batch: Any | None = None
    error: BaseException | None = None
    """Why this step cannot run, on every rank once any has a reason; earlier steps still finish."""
    micro_batches: list[MicroBatch] = field(default_factory=list)
    order: torch.Tensor | None = None
    counts: list[list[list[int]]] = field(default_factory=list)
    """Ids of each slot, by micro-batch and row space."""
    alive: bool = False
    """Every rank has a batch for this step; known after route."""
    routed: Routed = field(default_factory=Routed)
    buffers: list[RowBuffer] = field(default_factory=list)
    received: dict[int, list[RowTransfer]] = field(default_factory=dict)
    row_gradients: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    gradient_factor: torch.Tensor | None = None
    """[], what the gradients of rows are multiplied by where they are clipped."""
    losses: list[torch.Tensor] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    @property
    def routes(self) -> list[SpaceRoute]:
        """By row space which rows, whose and for whom."""
        return self.routed.spaces

    @property
    def shared(self) -> list[Shared]:
        """By row space the rows that the batch before has as well."""
        return self.routed.shared

    def routes_of(self, micro_batch: int) -> list[MicroBatchRoute]:
        """One micro-batch's route in every row space."""
        return [space.micro_batches[micro_batch] for space in self.routes]

    def take_result(self, device: torch.device) -> tuple[torch.Tensor, Any]:
        """Loss, on `device`, and output of the batch, once every micro-batch has run."""
        losses = self.losses or [torch.zeros((), device=device)]
        loss = torch.stack(losses).sum() if len(losses) > 1 else losses[0]
        sizes = [part.num_samples for part in self.micro_batches]
        output = merge_outputs(self.outputs, sizes, self.order)
        self.outputs.clear()
        return loss, output
