"""How many bytes the live tensors of a process hold, asked at the same points of every step."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn


class TensorMeter:
    """The most bytes seen in tensors, when a dense forward has ended and when a step has.

    Counted are storages of tensors that Python can reach, each once: tables, optimizer state, buffers, rows
    and batches, not what autograd alone keeps. Objects from before the first meter of a process are left
    out, since the collector need not look through them again.
    """

    def __init__(self, model: nn.Module) -> None:
        gc.collect()
        self.peak_bytes = 0
        head = getattr(model, "head", model)
        assert isinstance(head, nn.Module)
        head.register_forward_hook(self._after_forward)

    def sample(self) -> None:
        """Look at what is alive now."""
        self.peak_bytes = max(self.peak_bytes, live_bytes())

    def _after_forward(self, head: nn.Module, inputs: Any, output: Any) -> None:
        self.sample()


def live_bytes() -> int:
    """Bytes of the storages of all tensors that the collector tracks, leaving out frozen objects."""
    held = {}
    for item in gc.get_objects():
        if type(item) in (torch.Tensor, nn.Parameter) and item.layout is torch.strided:
            storage = item.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())
