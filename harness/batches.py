"""The batches of a launch: made once, before anything is measured, and the same for every method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workloads.interface import Workload

MAX_HELD_BYTES = 1 << 30
NUM_SPARE_BATCHES = 8
"""Batches beyond the last step, so that look-ahead finds the stream as endless as in the middle."""


class BatchSource:
    """The same batches for every method, made before anything is measured where they fit in memory."""

    def __init__(self, workload: Workload, num_batches: int) -> None:
        self._workload = workload
        self._batches: list[Any] = []
        stream = self._stream()
        first = next(stream)
        size_bytes = torch.tensor([num_bytes(first) * num_batches * dist.get_world_size()])
        dist.all_reduce(size_bytes, dist.ReduceOp.MAX)
        self.held = size_bytes.item() <= MAX_HELD_BYTES
        if self.held:
            self._batches = [first, *islice(stream, num_batches - 1)]

    def batches(self) -> Iterator[Any]:
        """A method's own iterator; its batches share memory with the others', not what a
        KeyedJaggedTensor remembers once it was asked (offsets, for example)."""
        if not self.held:
            return self._stream()
        return iter([batch.to(torch.device("cpu")) for batch in self._batches])

    def _stream(self) -> Iterator[Any]:
        return self._workload.batches(rank=dist.get_rank(), num_workers=dist.get_world_size())


def num_bytes(value: Any) -> int:
    """Bytes of the tensors in a batch."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, KeyedJaggedTensor):
        weights = value.weights_or_none()
        parts = [value.values(), value.lengths(), *([] if weights is None else [weights])]
        return sum(num_bytes(part) for part in parts)
    if is_dataclass(value):
        return sum(num_bytes(getattr(value, field.name)) for field in fields(value))
    return 0
