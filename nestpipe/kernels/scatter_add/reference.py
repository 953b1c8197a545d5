"""Scatter-add in plain torch."""

from __future__ import annotations

import torch


def scatter_add_rows(
    out: torch.Tensor, positions: torch.Tensor, gradients: torch.Tensor, deterministic: bool
) -> torch.Tensor:
    """`out` [num_rows, dim], `positions` [n], `gradients` [n, dim] -> `out`."""
    if deterministic and out.device.type != "cpu":
        # There index_add_ adds by atomics, while this sorts first.
        return out.index_put_((positions,), gradients, accumulate=True)
    return out.index_add_(0, positions, gradients)
