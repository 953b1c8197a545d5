"""Bucketise in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def owner_major_keys(keys: torch.Tensor, num_owners: int, rows_per_rank: int) -> torch.Tensor:
    """`keys` [n] -> [n]."""
    rows = torch.div(keys, num_owners, rounding_mode="floor")
    return (keys - rows * num_owners) * rows_per_rank + rows


def bucketize_keys(
    segments: Sequence[torch.Tensor], num_owners: int, rows_per_rank: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`segments` ascending [n_s] -> keys [n] by owner, counts [num_owners, num_segments]."""
    owners = torch.arange(num_owners + 1, device=segments[0].device)
    by_segment = [
        torch.searchsorted(keys, owners * num_rows).diff()
        for keys, num_rows in zip(segments, rows_per_rank, strict=True)
    ]
    pieces = [
        torch.tensor_split(keys, counts.cumsum(0).cpu())
        for keys, counts in zip(segments, by_segment, strict=True)
    ]
    # The last piece of a segment are its keys that have no owner.
    keys = torch.cat([of_segment[owner] for owner in range(num_owners + 1) for of_segment in pieces])
    return keys, torch.stack(by_segment, dim=1)
