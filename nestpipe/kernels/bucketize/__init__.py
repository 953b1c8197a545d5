"""Bucketise: keys by the rank that owns their rows.

Row k of a row space belongs to owner k mod W and is its row k div W. The key `owner * rows_per_rank + row
at the owner`, owner-major, sorts by owner: unique keys in order are bucketed as they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from nestpipe.kernels.bucketize import reference
from nestpipe.kernels.checks import check_bounds, check_indices, check_same_device
from nestpipe.kernels.dispatch import Impl, uses_triton


class Buckets(NamedTuple):
    """Keys by owner."""

    keys: torch.Tensor
    """[n] owner by owner; within an owner segment by segment, each in its order. Behind those that
    `counts` counts stand as many undefined ones as there were keys without an owner."""
    counts: torch.Tensor
    """[num_owners, num_segments] how many there are of each."""


def owner_major_keys(
    keys: torch.Tensor, num_owners: int, rows_per_rank: int, *, impl: Impl = "auto", bounds: bool = False
) -> torch.Tensor:
    """`(k mod num_owners) * rows_per_rank + k div num_owners`: `keys` int64 [n] -> int64 [n].

    `keys` itself where there is one owner. `bounds` checks that keys are those of rows that the owners
    have room for. Bytes moved: 16 n, the least possible. Raises TypeError, ValueError or IndexError.
    """
    op = "owner_major_keys"
    check_indices(op, "keys", keys)
    _check_owners(op, num_owners)
    if bounds:
        check_bounds(op, "keys", keys, num_owners * rows_per_rank)
    if num_owners == 1:
        return keys
    if uses_triton(impl, keys.device):
        from nestpipe.kernels.bucketize import triton

        return triton.owner_major_keys(keys, num_owners, rows_per_rank)
    return reference.owner_major_keys(keys, num_owners, rows_per_rank)


def bucketize_keys(
    segments: Sequence[torch.Tensor],
    num_owners: int,
    rows_per_rank: Sequence[int],
    *,
    impl: Impl = "auto",
    bounds: bool = False,
) -> Buckets:
    """Owner-major keys of several segments, as they are sent: all of the first owner, then the next.

    `segments` are int64 [n_s], each ascending, of row spaces with `rows_per_rank[s]` rows an owner. The
    order within a bucket is that of the segments. Keys of `num_owners * rows_per_rank[s]`, which have no
    owner, may fill a segment up. `bounds` checks that keys ascend and are not larger.
    Bytes moved for n keys in all: 16 n + 8 num_owners num_segments, the least possible; small tables of a
    few words an owner and segment stay in the cache. Raises TypeError, ValueError or IndexError naming the
    segment.
    """
    op = "bucketize_keys"
    _check_owners(op, num_owners)
    if not segments or len(segments) != len(rows_per_rank):
        raise ValueError(
            f"{op}: segments and rows_per_rank must be as many and at least one, got {len(segments)} and "
            f"{len(rows_per_rank)}"
        )
    for index, (keys, num_rows) in enumerate(zip(segments, rows_per_rank, strict=True)):
        name = f"segments[{index}]"
        check_indices(op, name, keys)
        if bounds:
            check_bounds(op, name, keys, num_owners * num_rows + 1)
            if bool((keys.diff() < 0).any()):
                raise ValueError(f"{op}: {name} must ascend; sort it first")
    check_same_device(op, **{f"segments[{index}]": keys for index, keys in enumerate(segments)})
    if uses_triton(impl, segments[0].device):
        from nestpipe.kernels.bucketize import triton

        return Buckets(*triton.bucketize_keys(segments, num_owners, rows_per_rank))
    return Buckets(*reference.bucketize_keys(segments, num_owners, rows_per_rank))


def _check_owners(op: str, num_owners: int) -> None:
    if num_owners < 1:
        raise ValueError(f"{op}: num_owners must be at least 1, got {num_owners}")
