"""The modelled device: a real small model under one time budget a micro-batch.

The clock runs from the arrival of a micro-batch's rows to the moment their gradients leave. The real
forward and backward run inside it and feed the optimizers; what is left of the budget is slept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchrec.distributed.types import LazyAwaitable
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

from harness.emulation.clock import sleep_until


@dataclass
class DeviceCosts:
    """Milliseconds of dense forward and backward, changeable between profiles."""

    dense_ms: float = 0.0
    """A whole batch, the launch included."""
    launch_ms: float = 0.0
    """Fixed part of every micro-batch."""

    def of_samples(self, share: float) -> float:
        """Budget of a micro-batch that holds `share` of the batch's samples."""
        return self.launch_ms + (self.dense_ms - self.launch_ms) * share


class ModelledDevice:
    """Hooks on a model's `head`, the module that receives the rows."""

    def __init__(self, model: nn.Module, costs: DeviceCosts, num_samples: int) -> None:
        head = getattr(model, "head", None)
        if not isinstance(head, nn.Module):
            raise ValueError(
                f"{type(model).__name__} has no submodule `head` that takes its rows; an emulated device "
                "needs one to see rows arrive and gradients leave"
            )
        self._costs = costs
        self._num_samples = num_samples
        head.register_forward_pre_hook(self._rows_arrive)

    def _rows_arrive(self, head: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self._costs.dense_ms:
            return
        rows = list(_row_tensors(inputs))
        num_samples = max((samples for _, samples in rows), default=0)
        budget_ms = self._costs.of_samples(num_samples / self._num_samples)
        gradients_leave = time.perf_counter() + budget_ms / 1e3
        for tensor, _ in rows:
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: sleep_until(gradients_leave))


def _row_tensors(value: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """Every tensor of rows in a head's inputs with its number of samples; waits for rows under way."""
    if isinstance(value, LazyAwaitable):
        value = LazyAwaitable._wait_async(value)  # remembers the result, which may be asked for once
    if isinstance(value, JaggedTensor):
        yield value.values(), value.lengths().numel()
    elif isinstance(value, KeyedTensor):
        yield value.values(), len(value.values())
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _row_tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _row_tensors(part)
