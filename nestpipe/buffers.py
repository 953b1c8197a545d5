"""Device buffers (DBP): the rows of a batch between their retrieval and their write-back.

There are two. While the active one serves batch t, the prefetch one is filled for batch t + 1; after
t's update, rows that both hold are copied active -> prefetch and the roles swap.
"""

from __future__ import annotations

import torch

from nestpipe.kernels.copy_rows import copy_rows
from nestpipe.optim import SparseOptimizer, state_dtype
from nestpipe.routing import RowSpace
from nestpipe.unique import Shared


class Scratch:
    """Memory for blocks of rows, kept between uses: fresh pages a step cost more than the copies.

    `take` returns the same memory for the same name, so a name has one user at a time.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._width = width
        self._dtype = dtype
        self._device = device
        self._blocks: dict[str, torch.Tensor] = {}

    def take(self, name: str, num_rows: int, width: int | None = None) -> torch.Tensor:
        """Room [num_rows, width] with undefined contents; the width is the same at each call of a name."""
        block = self._blocks.get(name)
        if block is None or len(block) < num_rows:
            shape = (num_rows + num_rows // 4, width or self._width)
            self._blocks[name] = block = torch.empty(shape, dtype=self._dtype, device=self._device)
        return block[:num_rows]


class RowBuffer:
    """Room for the unique rows, their state and their gradients, of one batch in one row space."""

    def __init__(self, space: RowSpace, optimizer: SparseOptimizer, device: torch.device) -> None:
        self._widths = optimizer.state_widths(space.dim)
        self._scratch = Scratch(space.dim, space.dtype, device)
        self._state_scratch = Scratch(space.dim, state_dtype(space.dtype), device)
        self.resize(torch.empty(0, dtype=torch.int64))

    def resize(self, keys: torch.Tensor) -> None:
        """Make room for `keys` [n], ascending; contents are undefined, gradients zero."""
        num_rows = keys.numel()
        self.keys = keys
        self.rows = self._scratch.take("rows", num_rows)
        self.gradients = self._scratch.take("gradients", num_rows).zero_()
        self.state = {
            name: self._state_scratch.take(name, num_rows, width) for name, width in self._widths.items()
        }

    def copy_shared_rows(self, active: RowBuffer, shared: Shared) -> None:
        """Dual-buffer synchronisation: rows and state at the `shared` positions from `active`."""
        copy_rows(active.rows, shared.active, self.rows, shared.prefetch)
        for name, values in self.state.items():
            copy_rows(active.state[name], shared.active, values, shared.prefetch)
