"""Device buffers (DBP): the rows of a batch between their retrieval and their write-back.

There are two. While the active one serves batch t, the prefetch one is filled for batch t + 1; after
t's update, rows that both hold are copied active -> prefetch and the roles swap.
"""

from __future__ import annotations

import torch

from nestpipe.optim import SparseOptimizer
from nestpipe.routing import RowSpace


class RowBuffer:
    """Room for the unique rows, their state and their gradients, of one batch in one row space."""

    def __init__(self, space: RowSpace, optimizer: SparseOptimizer, device: torch.device) -> None:
        self._space = space
        self._widths = optimizer.state_widths(space.dim)
        self._device = device
        self._capacity = 0
        self.keys = torch.empty(0, dtype=torch.int64)
        self.rows = self._allocate(0, space.dim)
        self.state: dict[str, torch.Tensor] = {}
        self.gradients = self.rows
        self._storage: dict[str, torch.Tensor] = {}

    def resize(self, keys: torch.Tensor) -> None:
        """Make room for `keys` [n], ascending; contents are undefined, gradients zero."""
        self.keys = keys
        num_rows = keys.numel()
        if num_rows > self._capacity:
            self._capacity = num_rows + num_rows // 4
            dim = self._space.dim
            self._storage = {
                "rows": self._allocate(self._capacity, dim),
                "gradients": self._allocate(self._capacity, dim),
                **{f"state.{name}": self._allocate(self._capacity, w) for name, w in self._widths.items()},
            }
        if self._storage:
            self.rows = self._storage["rows"][:num_rows]
            self.gradients = self._storage["gradients"][:num_rows].zero_()
            self.state = {name: self._storage[f"state.{name}"][:num_rows] for name in self._widths}

    def copy_shared_rows(self, active: RowBuffer, shared: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Dual-buffer synchronisation: rows and state at `shared` positions (active's, own) from `active`."""
        theirs, mine = shared
        self.rows.index_copy_(0, mine, active.rows.index_select(0, theirs))
        for name, values in self.state.items():
            values.index_copy_(0, mine, active.state[name].index_select(0, theirs))

    def _allocate(self, num_rows: int, width: int) -> torch.Tensor:
        return torch.empty(num_rows, width, dtype=self._space.dtype, device=self._device)


def shared_positions(active: torch.Tensor, prefetch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions in `active` [a] and in `prefetch` [p], both ascending and unique, of the keys in both."""
    if active.numel() == 0 or prefetch.numel() == 0:
        empty = torch.empty(0, dtype=torch.int64, device=active.device)
        return empty, empty
    positions = torch.searchsorted(active, prefetch).clamp_(max=active.numel() - 1)
    mine = (active.index_select(0, positions) == prefetch).nonzero().view(-1)
    return positions.index_select(0, mine), mine
