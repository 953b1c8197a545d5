"""The host tier: preparing batches, copying them to the device, reading and writing rows.

Rows are charged by one function, by unique rows, at two hooks: TorchRec's embedding kernels, whose
forward reads and whose fused backward writes, and the engine's host tables. Batches are charged where
every method gets them: by the iterator, and by the batch's own `to`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from baselines.torchrec_hooks import Point
from harness.emulation.clock import lasting, sleep_until
from nestpipe.table import Access

_ACCESS_OF: dict[Point, Access] = {Point.RETRIEVE: "read", Point.WRITE_BACK: "write"}


@dataclass
class HostCosts:
    """Milliseconds of the host tier, changeable between profiles; all zero models nothing."""

    prepare_ms: float = 0.0
    """Preparing a batch."""
    copy_ms: float = 0.0
    """Copying a whole batch to the device; a part of it takes its share."""
    read_ms_per_row: float = 0.0
    write_ms_per_row: float = 0.0

    def of_rows(self, kind: Access, num_rows: int) -> float:
        """The one charging function for rows: what `num_rows` unique rows cost to read or write."""
        return num_rows * (self.read_ms_per_row if kind == "read" else self.write_ms_per_row)


@dataclass
class EngineTier:
    """Charges the engine's host tables, and counts what they are asked for."""

    costs: HostCosts
    num_rows: dict[Access, int] = field(default_factory=lambda: {"read": 0, "write": 0})

    def access(self, kind: Access, num_rows: int, num_bytes: int) -> AbstractContextManager[None]:
        """See `nestpipe.table.HostTier`."""
        self.num_rows[kind] += num_rows
        return lasting(self.costs.of_rows(kind, num_rows))


class TorchRecTier:
    """Charges TorchRec's embedding kernels, and counts what they are asked for."""

    def __init__(self, costs: HostCosts) -> None:
        self.costs = costs
        self.num_rows: dict[Access, int] = {"read": 0, "write": 0}
        self._entered: list[float] = []

    def enter(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        """See `baselines.torchrec_hooks.Observer`."""
        self._entered.append(time.perf_counter())

    def leave(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        """See `baselines.torchrec_hooks.Observer`."""
        began = self._entered.pop()
        if point not in _ACCESS_OF or features is None:
            return
        kind = _ACCESS_OF[point]
        # Several senders may ask for the same row; host memory is read once, as the engine's owner does.
        num_rows = count_unique_rows(features)
        self.num_rows[kind] += num_rows
        sleep_until(began + self.costs.of_rows(kind, num_rows) / 1e3)


def count_unique_rows(features: KeyedJaggedTensor) -> int:
    """Unique rows that a kernel reads for `features`, each key standing for a table of its own range."""
    parts = features.values().split(features.length_per_key())
    return sum(int(part.unique().numel()) for part in parts)


class ChargedBatches:
    """An iterator of batches that take the modelled time to prepare, and to copy to the device."""

    def __init__(self, batches: Iterator[Any], costs: HostCosts) -> None:
        self._batches = batches
        self._costs = costs
        self._ready_at = 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with lasting(self._costs.prepare_ms):
            return charge_copies(next(self._batches), self._costs)


def charge_copies(batch: Any, costs: HostCosts) -> Any:
    """The batch, in a class of the same kind whose `to` takes the modelled time."""
    charged = copy.copy(batch)
    charged.__class__ = _charged_class(type(batch))
    charged.copy_costs = costs
    charged.whole_num_samples = batch.sparse_features.stride()
    return charged


_CLASSES: dict[type, type] = {}


def _charged_class(kind: type) -> type:
    if kind not in _CLASSES:

        def to(self: Any, device: torch.device, non_blocking: bool = False) -> Any:
            share = self.sparse_features.stride() / max(1, self.whole_num_samples)
            with lasting(self.copy_costs.copy_ms * share):
                moved = kind.to(self, device, non_blocking)  # type: ignore[attr-defined]
            return moved

        _CLASSES[kind] = type(f"Charged{kind.__name__}", (kind,), {"to": to})
    return _CLASSES[kind]
