"""This rank's rows of a row space in host memory, with their optimizer state (stage 4 reads them).

`read` and `write` are the only ways to the rows while training runs, so whoever wants to count,
charge or check row traffic does it here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from nestpipe.optim import SparseOptimizer
from nestpipe.routing import RowSpace

Observer = Callable[[str, int, int], None]
"""Called with "read" or "write", the number of rows and the number of bytes, after each access."""


class HostTable:
    """Rows [rows_per_rank, dim] of one rank and, a tensor each, the state of the sparse optimizer."""

    def __init__(self, space: RowSpace, optimizer: SparseOptimizer, observer: Observer | None = None) -> None:
        self.space = space
        self.weight = torch.empty(space.rows_per_rank, space.dim, dtype=space.dtype)
        self.state = {
            name: torch.zeros(space.rows_per_rank, width, dtype=space.dtype)
            for name, width in optimizer.state_widths(space.dim).items()
        }
        self._observer = observer

    @property
    def row_bytes(self) -> int:
        """Bytes of a row together with its optimizer state."""
        return sum(t.element_size() * t.shape[1] for t in (self.weight, *self.state.values()))

    def read(self, rows: torch.Tensor, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        """Copy `rows` [n] into `weight` [n, dim] and, for the names in `state`, [n, width] each."""
        torch.index_select(self.weight, 0, rows, out=weight)
        for name, out in state.items():
            torch.index_select(self.state[name], 0, rows, out=out)
        self._observe("read", rows)

    def write(self, rows: torch.Tensor, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        """Overwrite `rows` [n], which are unique, and their state."""
        self.weight.index_copy_(0, rows, weight)
        for name, values in state.items():
            self.state[name].index_copy_(0, rows, values)
        self._observe("write", rows)

    def _observe(self, access: str, rows: torch.Tensor) -> None:
        if self._observer is not None:
            self._observer(access, rows.numel(), rows.numel() * self.row_bytes)
