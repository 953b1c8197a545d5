"""What a workload's model holds, without building it, and what a step of it takes on one core here."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from harness.batches import num_bytes
from harness.options import Training
from harness.setup import autocast
from workloads.interface import Workload

MEMORY_SHARE = 0.25
"""Of the memory that is free: larger models are not built here, and their steps not timed."""
_NUM_TIMED, _ENOUGH_S = 4, 1.0
_DEVICE = torch.device("cpu")


@dataclass(frozen=True)
class Costs:
    """A workload's model and batches."""

    table_bytes: int
    num_rows: int
    dense_bytes: int
    batch_bytes: int
    batch_s: float
    """To make a batch."""
    build_s: float
    """To make the model; 0 where `step_s` is None."""
    step_s: float | None
    """Forward and backward of one batch on one core; None for what cannot be timed here."""


def measure_costs(workload: Workload, training: Training, num_workers: int) -> Costs:
    """Sizes, and the time of a few steps where the model fits easily and is to train on the CPU."""
    with _Weightless():
        shape = workload.model(torch.device("meta"), getattr(torch, training.dtype))
    tables = {id(table.weight): table for table in _tables(shape)}
    table_bytes = sum(_bytes(table.weight) for table in tables.values())
    dense_bytes = sum(_bytes(each) for each in shape.parameters() if id(each) not in tables)
    fits = 2 * (table_bytes + dense_bytes) < MEMORY_SHARE * psutil.virtual_memory().available
    with _as_in_a_worker():
        began = time.perf_counter()
        batch = next(workload.batches(rank=0, num_workers=num_workers))
        batch_s = time.perf_counter() - began
        build_s, step_s = 0.0, None
        if fits and training.device == "cpu":
            build_s, step_s = _time(workload, training, batch)
    return Costs(
        table_bytes=table_bytes,
        num_rows=sum(table.num_embeddings for table in tables.values()),
        dense_bytes=dense_bytes,
        batch_bytes=num_bytes(batch),
        batch_s=batch_s,
        build_s=build_s,
        step_s=step_s,
    )


class _Weightless(TorchDispatchMode):
    """What is created has a shape, but no memory."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        changed = dict(kwargs or {})
        if "device" in changed:
            changed["device"] = torch.device("meta")
        return function(*args, **changed)


@contextmanager
def _as_in_a_worker() -> Iterator[None]:
    """One thread, and no advice on the screen that TorchRec's authors would have to follow."""
    num_threads, log = torch.get_num_threads(), logging.getLogger("torch.fx")
    level = log.level
    torch.set_num_threads(1)
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        log.setLevel(level)


def _time(workload: Workload, training: Training, batch: Any) -> tuple[float, float]:
    """Seconds to build the model, and of one of its steps."""
    began = time.perf_counter()
    model = workload.model(_DEVICE, getattr(torch, training.dtype))
    build_s = time.perf_counter() - began
    for table in _tables(model):
        # A gradient as large as the table is what no method computes.
        table.sparse = True
    took: list[float] = []
    while len(took) < _NUM_TIMED and sum(took) < _ENOUGH_S:
        began = time.perf_counter()
        _step(model, batch, training)
        took.append(time.perf_counter() - began)
    # The first one warms up.
    return build_s, median(took[1:] or took)


def _step(model: nn.Module, batch: Any, training: Training) -> None:
    model.zero_grad(set_to_none=True)
    with autocast(training, _DEVICE):
        loss, _ = model(batch)
    loss.backward()


def _tables(model: nn.Module) -> list[nn.Embedding | nn.EmbeddingBag]:
    return [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
