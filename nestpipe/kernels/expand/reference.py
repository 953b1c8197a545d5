"""Expansion in plain torch, whose own autograd gives the gradient; repeatable on every device."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def expand_rows(rows: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """`rows` [n, dim], `inverse` [num_ids] -> [num_ids, dim]."""
    if rows.device.type == "cpu":
        return rows.index_select(0, inverse)
    # Elsewhere the gradient of index_select is added in an order that changes from run to run.
    return F.embedding(inverse, rows)
