"""Gather as a Triton kernel: that of `copy_rows`, with the rows written in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from nestpipe.kernels.aot import ROW_DTYPES, Variant
from nestpipe.kernels.copy_rows.triton import copy_rows, variant_of


def gather_rows(table: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """`table` [num_rows, dim], `rows` [n] -> `out` [n, dim]."""
    copy_rows(table, rows, out, None, rows.numel())
    return out


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: rows of 128 elements in each dtype, and awkward ones."""
    for dtype, dim in (*((dtype, 128) for dtype in ROW_DTYPES), ("fp32", 60)):
        one = variant_of("gather", dtype, dim, without="target_positions")
        yield replace(one, name=f"{dtype} {dim}")
