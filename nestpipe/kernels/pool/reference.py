"""Pooling in plain torch, whose own autograd gives the gradients; repeatable on every device."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def pool_rows(
    rows: torch.Tensor,
    ids: torch.Tensor | None,
    offsets: torch.Tensor,
    mean: bool,
    weights: torch.Tensor | None,
) -> torch.Tensor:
    """`rows` [n, dim], `offsets` [S + 1], `ids` and `weights` [num_ids] or None -> [S, dim]."""
    if ids is not None:
        sums = F.embedding_bag(
            ids, rows, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
        return _means(sums, offsets.diff()) if mean else sums
    lengths = offsets.diff()
    sums = _sums_in_order(rows if weights is None else rows * weights.unsqueeze(1), lengths)
    return _means(sums, lengths) if mean else sums


def _sums_in_order(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    if rows.device.type == "cpu":
        bags = torch.repeat_interleave(lengths, output_size=len(rows))
        return rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, bags, rows)
    # Elsewhere index_add would add in an order that changes from run to run.
    return torch.segment_reduce(rows, "sum", lengths=lengths, axis=0, unsafe=True, initial=0.0)


def _means(sums: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return sums / lengths.clamp(min=1).unsqueeze(1)
