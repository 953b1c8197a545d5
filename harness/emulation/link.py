"""The modelled link of a worker: when each of its transfers occupies the wire, and when it is through.

A link carries one transfer at a time, for bytes / bandwidth; the latency comes after and occupies nothing
(LogGP's separation of gap and latency), so a short message does not hold up what is behind it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class LinkCost:
    """What a transfer costs: its time on the link is bytes / bytes_per_ms, latency_ms is added after."""

    bytes_per_ms: float = math.inf
    latency_ms: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_ms > 0:
            raise ValueError(
                f"bytes_per_ms must be above 0, got {self.bytes_per_ms}; math.inf makes transfers free"
            )
        if not 0 <= self.latency_ms < math.inf:
            raise ValueError(f"latency_ms must be at least 0 and finite, got {self.latency_ms}")


FREE = LinkCost()

_MESH_KINDS = {"mesh_shard": "sharding", "mesh_replicate": "replica"}


@dataclass(frozen=True)
class Group:
    """A process group, as far as costs depend on it."""

    ranks: tuple[int, ...]
    world_size: int
    description: str = "undefined"
    """What torch.distributed was told (`group_desc`); a DeviceMesh gives `mesh_<dimension>`."""

    @property
    def kind(self) -> str:
        """world, sharding, replica or other.

        A dimension of a TorchRec mesh says itself what it is. Other groups go by their ranks: neighbours
        are replicas, and where R of them make up a node, every R-th rank is in one sharding group. A
        group of all ranks is the world, whatever it is for: torch makes no other group for such a mesh.
        """
        size = len(self.ranks)
        if size == self.world_size:
            return "world"
        if self.description in _MESH_KINDS:
            return _MESH_KINDS[self.description]
        steps = {later - earlier for earlier, later in pairwise(self.ranks)}
        if self.world_size % size or len(steps) != 1:
            return "other"
        step = steps.pop()
        return "replica" if step == 1 else "sharding" if step * size == self.world_size else "other"


Costs = Callable[[Group], LinkCost]
"""What a collective of a group costs on this worker's link."""


def free(group: Group) -> LinkCost:
    """Costs of a fabric that models nothing."""
    return FREE


@dataclass(eq=False)
class Transfer:
    """One use of the link; times are perf_counter seconds, NaN until the link has placed it."""

    num_bytes: int
    cost: LinkCost
    issued_s: float
    joined: Callable[[], float | None]
    """When the last peer that this worker depends on had joined; None until then."""
    joined_s: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan

    @property
    def due_s(self) -> float:
        """When the transfer is through: off the link, and its latency over."""
        return self.end_s + self.cost.latency_ms / 1e3


class Link:
    """First come, first served, in the order in which transfers can start; equals go in issue order.

    A transfer can start when its last peer has joined. One that was issued earlier but whose peers are
    late takes no turn: whatever can start goes ahead of it. All peers of a collective see the same join
    times, so their links agree on the order however their threads were scheduled. The timeline is worked
    out when somebody asks: `place` first places all transfers that could start before the one asked for,
    whether or not anyone waits for them, so the result does not depend on who waits when.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[Transfer] = []
        self._free_s = -math.inf

    def add(self, transfer: Transfer) -> None:
        """A transfer was issued."""
        with self._lock:
            self._pending.append(transfer)

    def discard(self, transfer: Transfer) -> None:
        """A transfer failed: it takes no turn."""
        with self._lock:
            if transfer in self._pending:
                self._pending.remove(transfer)

    def place(self, transfer: Transfer, finished_s: float) -> None:
        """Give a transfer whose real collective was seen to be over at `finished_s` its time on the link."""
        with self._lock:
            if transfer not in self._pending:
                return
            joined_s = transfer.joined()
            if joined_s is None:  # its stamps were overwritten since
                joined_s = finished_s
            transfer.joined_s = joined_s
            earlier = self._joined_until(joined_s, excluding=transfer)
            for placed in [*earlier, transfer]:
                self._occupy(placed)
            self._pending = [other for other in self._pending if math.isnan(other.end_s)]

    def _joined_until(self, limit_s: float, excluding: Transfer) -> list[Transfer]:
        """Pending transfers that could start by `limit_s`, in that order; issue order at the limit."""
        ready = []
        is_before = True
        for other in self._pending:
            if other is excluding:
                is_before = False
                continue
            joined_s = other.joined()
            if joined_s is not None and (joined_s < limit_s or (joined_s == limit_s and is_before)):
                other.joined_s = joined_s
                ready.append(other)
        return sorted(ready, key=lambda other: other.joined_s)

    def _occupy(self, transfer: Transfer) -> None:
        busy_s = transfer.num_bytes / transfer.cost.bytes_per_ms / 1e3
        transfer.start_s = max(self._free_s, transfer.joined_s)
        transfer.end_s = transfer.start_s + busy_s
        self._free_s = transfer.end_s
