"""Where each row of a matrix occurs in a list of positions: what lets gradients be added in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Occurrences:
    """`num` positions sorted by row, occurrences of one row in their order.

    Row r occurs at `order[offsets[r]]` to `order[offsets[r + 1] - 1]`: `order` int64 [num], `offsets`
    int64 [num_rows + 1]. `rows` [num] are the sorted positions, of the narrowest dtype that holds them.
    """

    order: torch.Tensor
    offsets: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def of(cls, positions: torch.Tensor, num_rows: int) -> Occurrences:
        """Of `positions` int64 [num] below `num_rows`; never waits for a device."""
        rows, order = sort_by_row(positions, num_rows)
        offsets = torch.searchsorted(rows, torch.arange(num_rows + 1, dtype=rows.dtype, device=rows.device))
        return cls(order, offsets, rows)


def sort_by_row(positions: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted `positions` int64 [num] below `num_rows`, narrow, and their order; equal ones keep theirs.

    Bytes moved on a device: a radix sort passes over keys and order once a byte of the key, so 50 an id
    for less than 2**15 rows, 110 for less than 2**31.
    """
    dtypes = (torch.int16, torch.int32, torch.int64)
    dtype = next(dtype for dtype in dtypes if num_rows <= torch.iinfo(dtype).max)
    rows, order = positions.to(dtype).sort(stable=True)
    return rows, order
