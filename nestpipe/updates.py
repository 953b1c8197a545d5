"""The update of a step: both optimizers, at this step's learning rates, on clipped gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nestpipe.buffers import RowBuffer
from nestpipe.clipping import GradientClipping, scale
from nestpipe.dense import FlatGradients
from nestpipe.lr import LrFactor, factor_at
from nestpipe.optim import SparseOptimizer
from nestpipe.transport import Transports, wait


@dataclass
class Updates:
    """Applies the gradients of a window, once they are all there; `step` counts from 0 over the run."""

    sparse_optimizer: SparseOptimizer
    dense_optimizer: torch.optim.Optimizer
    flat: FlatGradients
    transports: Transports
    sparse_lr_factor: LrFactor | None = None
    dense_lr_factor: LrFactor | None = None
    clipping: GradientClipping | None = None

    def clip(self, buffers: Sequence[RowBuffer], device: torch.device) -> torch.Tensor | None:
        """Scale the dense gradients, and return the factor [] for those of the rows in `buffers`, if any.

        A collective where rows count, on the caller's thread. The host reads nothing of the `device`.
        """
        if self.clipping is None:
            return None
        with_rows = self.clipping.scope == "all"
        squares = self.flat.squared_norm(device)
        if with_rows:
            squares += self._squared_norm_of_rows(buffers, device)
        factor = self.clipping.factor(squares.sqrt())
        self.flat.scale(factor)
        return factor if with_rows else None

    def update_dense(self, step: int) -> None:
        """One step of the dense optimizer; leaves zeros for the next window's gradients."""
        factor = factor_at(self.dense_lr_factor, step)
        groups = self.dense_optimizer.param_groups
        rates = [group["lr"] for group in groups] if factor != 1.0 else []
        for group, rate in zip(groups, rates, strict=False):
            group["lr"] = rate * factor
        self.dense_optimizer.step()
        # The base rates go back at once: they may have a scheduler of the user's own.
        for group, rate in zip(groups, rates, strict=False):
            group["lr"] = rate
        self.flat.zero()

    def update_rows(self, buffer: RowBuffer, step: int, gradient_factor: torch.Tensor | None) -> None:
        """One step of the sparse optimizer on the rows and state of a buffer."""
        # TorchRec's convention: summed over all duplicates, divided by the ranks that share the table.
        gradients = buffer.gradients
        if self.transports.comm.size > 1:
            gradients.div_(self.transports.comm.size)
        if gradient_factor is not None:
            scale(gradients, gradient_factor)
        factor = factor_at(self.sparse_lr_factor, step)
        self.sparse_optimizer.update(buffer.rows, buffer.state, gradients, step + 1, factor)

    def _squared_norm_of_rows(self, buffers: Sequence[RowBuffer], device: torch.device) -> torch.Tensor:
        control = self.transports.control
        sharing = self.transports.comm.size
        squares = torch.zeros((), dtype=torch.float64, device=device)
        for buffer in buffers:
            norm = torch.linalg.vector_norm(buffer.gradients, dtype=torch.float64)
            squares += (norm / sharing).square()
        wait(control.all_reduce(squares))
        num_groups = control.size // sharing
        return squares / num_groups
