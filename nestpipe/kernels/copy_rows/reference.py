"""Copy of rows by position in plain torch."""

from __future__ import annotations

import torch


def copy_rows(
    source: torch.Tensor,
    source_positions: torch.Tensor | None,
    target: torch.Tensor,
    target_positions: torch.Tensor,
) -> None:
    """`source` [num_source_rows, dim] to `target` [num_target_rows, dim], which may be on another device."""
    rows = source
    if source_positions is not None:
        rows = source.index_select(0, source_positions.to(source.device))
    target.index_copy_(0, target_positions.to(target.device), rows.to(target.device))
