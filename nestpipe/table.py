"""This rank's rows of a row space in host memory, with their optimizer state (stage 4 reads them).

`read`, `write` and `update` are the only ways to the rows while training runs, so whoever wants to
count or charge row traffic does it here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

import torch

from nestpipe.kernels.copy_rows import copy_rows
from nestpipe.kernels.gather import gather_rows
from nestpipe.optim import SparseOptimizer, state_dtype
from nestpipe.routing import RowSpace

Access = Literal["read", "write"]


class HostTier(Protocol):
    """Is told of every access to host rows while it lasts."""

    def access(self, kind: Access, num_rows: int, num_bytes: int) -> AbstractContextManager[None]:
        """Entered before and left after `num_rows` unique rows, state included, are read or written."""
        ...


class HostTable:
    """Rows [rows_per_rank, dim] of one rank and, a tensor each, the state of the sparse optimizer."""

    def __init__(
        self,
        space: RowSpace,
        optimizer: SparseOptimizer,
        tier: HostTier | None = None,
        is_pinned: bool = False,
    ) -> None:
        self.space = space
        self.is_pinned = is_pinned
        """In memory that the kernels of an accelerator read and write in place."""
        self.weight = torch.empty(space.rows_per_rank, space.dim, dtype=space.dtype, pin_memory=is_pinned)
        self.state = {
            name: torch.zeros(
                space.rows_per_rank, width, dtype=state_dtype(space.dtype), pin_memory=is_pinned
            )
            for name, width in optimizer.state_widths(space.dim).items()
        }
        self._tier = tier

    @property
    def row_bytes(self) -> int:
        """Bytes of a row together with its optimizer state."""
        return sum(t.element_size() * t.shape[1] for t in (self.weight, *self.state.values()))

    def read(self, rows: torch.Tensor, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        """Copy `rows` [n] into `weight` [n, dim] and, for the names in `state`, [n, width] each."""
        with self._access("read", rows):
            self._load(rows, weight, state)

    def write(self, rows: torch.Tensor, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        """Overwrite `rows` [n], which are unique, and their state."""
        with self._access("write", rows):
            self._store(rows, weight, state)

    def update(
        self,
        rows: torch.Tensor,
        weight: torch.Tensor,
        state: dict[str, torch.Tensor],
        change: Callable[[], None],
    ) -> None:
        """Change `rows` [n] in place: their current values go to `weight` and `state`, `change` works on
        those, and the result goes back; one access, as a fused update in host memory is."""
        with self._access("write", rows):
            self._load(rows, weight, state)
            change()
            self._store(rows, weight, state)

    def _load(self, rows: torch.Tensor, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        gather_rows(self.weight, rows, weight)
        for name, out in state.items():
            gather_rows(self.state[name], rows, out)

    def _store(self, rows: torch.Tensor, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
        copy_rows(weight, None, self.weight, rows)
        for name, values in state.items():
            copy_rows(values, None, self.state[name], rows)

    def _access(self, kind: Access, rows: torch.Tensor) -> AbstractContextManager[None]:
        if self._tier is None:
            return nullcontext()
        return self._tier.access(kind, rows.numel(), rows.numel() * self.row_bytes)
