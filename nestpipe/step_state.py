"""One batch on its way through the pipeline: what each stage leaves for the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from nestpipe.batching import MicroBatch
from nestpipe.buffers import RowBuffer
from nestpipe.exchange import RowTransfer
from nestpipe.routing import MicroBatchRoute, SpaceRoute
from nestpipe.schedule import Schedule
from nestpipe.stream import BatchStream


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
    routes: list[SpaceRoute] = field(default_factory=list)
    buffers: list[RowBuffer] = field(default_factory=list)
    shared: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    received: dict[int, list[RowTransfer]] = field(default_factory=dict)
    row_gradients: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    def routes_of(self, micro_batch: int) -> list[MicroBatchRoute]:
        """One micro-batch's route in every row space."""
        return [space.micro_batches[micro_batch] for space in self.routes]
