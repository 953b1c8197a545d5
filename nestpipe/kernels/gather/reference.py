"""Gather in plain torch."""

from __future__ import annotations

import torch


def gather_rows(table: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`table` [num_rows, dim], `rows` [n] -> `out` [n, dim]; from host memory to a device by a copy."""
    if table.device == rows.device:
        return torch.index_select(table, 0, rows, out=out)
    return out.copy_(table.index_select(0, rows.to(table.device)))
