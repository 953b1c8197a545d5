"""Bucketise as Triton kernels, free of atomics: where owners begin is searched, then every key moves once.

As each segment ascends, an owner's keys are one piece of it, and a key moves as far as its piece does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from nestpipe.kernels.aot import Variant
from nestpipe.kernels.dispatch import launch

KEYS_A_PROGRAM = 1024
OWNERS_A_PROGRAM = 256

# One kernel for all sizes and for pieces that begin anywhere: none is compiled while others train.
_jit = triton.jit(
    do_not_specialize=["num", "num_owners", "rows_per_rank", "num_steps"],
    do_not_specialize_on_alignment=["keys", "out", "firsts", "shifts"],
)


@_jit
def _owner_major(keys, out, num, num_owners, rows_per_rank, KEYS: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * KEYS + tl.arange(0, KEYS)
    key = tl.load(keys + index, mask=index < num, other=0)
    row = key // num_owners
    tl.store(out + index, (key - row * num_owners) * rows_per_rank + row, mask=index < num)


@_jit
def _find_firsts(keys, firsts, num, num_owners, rows_per_rank, num_steps, OWNERS: tl.constexpr):
    """`firsts[o]`, o in 0..num_owners: how many of the ascending keys belong to owners before o."""
    owner = tl.program_id(0).to(tl.int64) * OWNERS + tl.arange(0, OWNERS)
    low = tl.zeros([OWNERS], tl.int64)
    high = low + num
    # Unrolled, the search would fill pages; all owners take the same number of steps.
    for _ in range(num_steps):
        is_open = low < high
        middle = (low + high) >> 1
        key = tl.load(keys + middle, mask=is_open, other=0)
        is_before = key < owner * rows_per_rank
        low = tl.where(is_open & is_before, middle + 1, low)
        high = tl.where(is_open & (key >= owner * rows_per_rank), middle, high)
    tl.store(firsts + owner, low, mask=owner <= num_owners)


@_jit
def _move(keys, shifts, out, num, num_owners, rows_per_rank, KEYS: tl.constexpr):
    """`shifts[o]`: how far the keys of owner o lie in `out` behind where they lie in `keys`."""
    index = tl.program_id(0).to(tl.int64) * KEYS + tl.arange(0, KEYS)
    key = tl.load(keys + index, mask=index < num, other=0)
    owner = key // rows_per_rank
    mask = (index < num) & (owner < num_owners)
    shift = tl.load(shifts + owner, mask=mask, other=0)
    tl.store(out + index + shift, key, mask=mask)


def owner_major_keys(keys: torch.Tensor, num_owners: int, rows_per_rank: int) -> torch.Tensor:
    """`keys` [n] -> [n]."""
    out = torch.empty_like(keys)
    num = keys.numel()
    if num:
        grid = (triton.cdiv(num, KEYS_A_PROGRAM),)
        launch(_owner_major, grid, keys, out, num, num_owners, rows_per_rank, KEYS=KEYS_A_PROGRAM)
    return out


def bucketize_keys(
    segments: Sequence[torch.Tensor], num_owners: int, rows_per_rank: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """`segments` ascending [n_s] -> keys [n] by owner, counts [num_owners, num_segments].

    A launch a segment for its counts and one for its keys; nothing is read on the host.
    """
    device = segments[0].device
    firsts = torch.empty(len(segments), num_owners + 1, dtype=torch.int64, device=device)
    for keys, of_segment, num_rows in zip(segments, firsts, rows_per_rank, strict=True):
        grid = (triton.cdiv(num_owners + 1, OWNERS_A_PROGRAM),)
        num = keys.numel()
        scalars = (num, num_owners, num_rows, num.bit_length())
        launch(_find_firsts, grid, keys, of_segment, *scalars, OWNERS=OWNERS_A_PROGRAM)
    counts = firsts.diff(dim=1).t().contiguous()
    ends = counts.view(-1).cumsum(0).view_as(counts)
    shifts = (ends - counts).t() - firsts[:, :-1]
    out = torch.empty(sum(keys.numel() for keys in segments), dtype=torch.int64, device=device)
    for keys, of_segment, num_rows in zip(segments, shifts.contiguous(), rows_per_rank, strict=True):
        num = keys.numel()
        if num:
            grid = (triton.cdiv(num, KEYS_A_PROGRAM),)
            launch(_move, grid, keys, of_segment, out, num, num_owners, num_rows, KEYS=KEYS_A_PROGRAM)
    return out, counts


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time; keys move 8 bytes an access, as pieces begin anywhere."""
    for kernel, block in ((_owner_major, "KEYS"), (_find_firsts, "OWNERS"), (_move, "KEYS")):
        yield _variant(kernel, {block: KEYS_A_PROGRAM if block == "KEYS" else OWNERS_A_PROGRAM})


def _variant(kernel: Any, constants: dict[str, int]) -> Variant:
    pointers = tuple(name for name in kernel.arg_names if name in ("keys", "out", "firsts", "shifts"))
    scalars = set(kernel.arg_names) - set(pointers) - set(constants)
    return Variant(
        op="bucketize",
        name=kernel.__name__[1:],
        kernel=kernel,
        signature=dict.fromkeys(pointers, "*i64") | dict.fromkeys(sorted(scalars), "i64"),
        constexprs=constants,
        moves_rows=False,
    )
