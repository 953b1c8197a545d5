"""The ops that are measured: their inputs, what a call does, and the bytes that it has to move."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nestpipe.kernels.bucketize import bucketize_keys, owner_major_keys
from nestpipe.kernels.copy_rows import copy_rows
from nestpipe.kernels.dispatch import Impl
from nestpipe.kernels.expand import expand_rows
from nestpipe.kernels.gather import gather_rows
from nestpipe.kernels.hstu_attention import hstu_attention
from nestpipe.kernels.padding import Padding
from nestpipe.kernels.pool import pool_rows
from nestpipe.kernels.row_update import row_wise_adagrad
from nestpipe.kernels.scatter_add import scatter_add_rows, sort_positions
from nestpipe.optim import state_dtype

LEAST_BYTES = 1 << 30
"""That a call of an op which memory bounds moves on an accelerator: far more than caches hold."""
_CPU_ROWS, _CPU_IDS = 50_000, 20_000
"""A few seconds in all."""
NUM_OWNERS = 8
NUM_HEADS = 4
TOKENS_A_SAMPLE = 100

Call = Callable[[Impl], torch.Tensor]


@dataclass(frozen=True)
class Size:
    """What the inputs are made of."""

    num_rows: int
    num_ids: int
    dim: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        return self.dim * self.dtype.itemsize

    @property
    def num_unique(self) -> int:
        """Distinct rows among the ids of a batch, where an op has them."""
        return max(1, self.num_ids // 4)


@dataclass(frozen=True)
class Case:
    """One op at one size: `call(impl)` runs it and returns a result to compare."""

    op: str
    num_bytes: int
    """That a call moves at the least, or 0 for an op that computing bounds."""
    call: Call
    fbgemm: Callable[[], torch.Tensor] | None = None
    """The same by FBGEMM, where it has the op."""


def load_fbgemm() -> bool:
    """Whether FBGEMM's operators are there, after loading them."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return False
    try:
        importlib.import_module("fbgemm_gpu")
    except (ImportError, OSError):  # built for another torch
        return False
    return True


def size_for(
    op: str,
    device: torch.device,
    dim: int,
    dtype: torch.dtype,
    num_rows: int | None = None,
    num_ids: int | None = None,
) -> Size:
    """The size at which the op is measured on `device`, in what is not given."""
    if device.type == "cpu":
        return Size(num_rows or _CPU_ROWS, num_ids or _CPU_IDS, dim, dtype)
    # Ops on keys read and write each, all others move the row of each id at least once.
    id_bytes = 16 if op in _KEY_OPS else dim * dtype.itemsize
    usual_ids = -(-LEAST_BYTES // id_bytes)
    return Size(num_rows or 2 * usual_ids, num_ids or usual_ids, dim, dtype)


def build_case(op: str, size: Size, device: torch.device) -> Case:
    """The case of the op's name, one of `OPS`, with inputs on `device`."""
    return _BUILDERS[op](size, _Source(size, device))


class _Source:
    """Random inputs, drawn on the device and the same whenever they are drawn anew."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self._size = size
        self.device = device
        self._generator = torch.Generator(device).manual_seed(0)

    def rows(self, num_rows: int, dim: int | None = None) -> torch.Tensor:
        shape = (num_rows, self._size.dim if dim is None else dim)
        return torch.randn(shape, generator=self._generator, device=self.device).to(self._size.dtype)

    def host_rows(self, num_rows: int) -> torch.Tensor:
        """In host memory, pinned where an accelerator is to reach it."""
        rows = self.rows(num_rows).cpu()
        return rows if self.device.type == "cpu" else rows.pin_memory()

    def ids(self, num_ids: int, below: int) -> torch.Tensor:
        return torch.randint(below, (num_ids,), generator=self._generator, device=self.device)

    def unique_ids(self, num_ids: int, below: int) -> torch.Tensor:
        drawn = torch.randperm(below, generator=self._generator, device=self.device)[:num_ids]
        return drawn.sort().values


def _gather(size: Size, source: _Source) -> Case:
    table, rows = source.rows(size.num_rows), source.ids(size.num_ids, size.num_rows)
    out = torch.empty(size.num_ids, size.dim, dtype=size.dtype, device=source.device)
    has_fbgemm = load_fbgemm() and hasattr(torch.ops.fbgemm, "index_select_dim0")
    return Case(
        "gather",
        size.num_ids * (8 + 2 * size.row_bytes),
        lambda impl: gather_rows(table, rows, out, impl=impl),
        (lambda: torch.ops.fbgemm.index_select_dim0(table, rows)) if has_fbgemm else None,
    )


def _gather_pinned(size: Size, source: _Source) -> Case:
    """A table in host memory, which the kernel of an accelerator reads in place."""
    table, rows = source.host_rows(size.num_rows), source.ids(size.num_ids, size.num_rows)
    out = torch.empty(size.num_ids, size.dim, dtype=size.dtype, device=source.device)
    num_bytes = size.num_ids * (8 + 2 * size.row_bytes)
    return Case("gather_pinned", num_bytes, lambda impl: gather_rows(table, rows, out, impl=impl))


def _copy_rows(size: Size, source: _Source) -> Case:
    origin, target = source.rows(size.num_rows), source.rows(size.num_rows)
    num = min(size.num_ids, size.num_rows)
    theirs, mine = source.unique_ids(num, size.num_rows), source.unique_ids(num, size.num_rows)

    def call(impl: Impl) -> torch.Tensor:
        copy_rows(origin, theirs, target, mine, impl=impl)
        return target

    return Case("copy_rows", num * (16 + 2 * size.row_bytes), call)


def _scatter_add(size: Size, source: _Source) -> Case:
    """The additions alone: `out` is zero before the first call, and positions are sorted ahead."""
    positions = source.ids(size.num_ids, size.num_unique)
    gradients = source.rows(size.num_ids)
    out = torch.zeros(size.num_unique, size.dim, dtype=size.dtype, device=source.device)
    ahead = sort_positions(positions, size.num_unique)
    num_bytes = 8 * size.num_ids + (size.num_ids + 2 * size.num_unique) * size.row_bytes
    return Case(
        "scatter_add",
        num_bytes,
        lambda impl: scatter_add_rows(out, positions, gradients, sorted_positions=ahead, impl=impl),
    )


def _row_update(size: Size, source: _Source) -> Case:
    rows, gradients = source.rows(size.num_rows), source.rows(size.num_rows)
    total = source.rows(size.num_rows, dim=1).abs().to(state_dtype(size.dtype))

    def call(impl: Impl) -> torch.Tensor:
        row_wise_adagrad(rows, total, gradients, lr=1e-3, eps=1e-8, impl=impl)
        return rows

    num_bytes = size.num_rows * (3 * size.row_bytes + 2 * total.element_size())
    return Case("row_update", num_bytes, call)


def _owner_major(size: Size, source: _Source) -> Case:
    keys = source.ids(size.num_ids, size.num_rows)
    rows_per_rank = -(-size.num_rows // NUM_OWNERS)
    return Case(
        "owner_major_keys",
        16 * size.num_ids,
        lambda impl: owner_major_keys(keys, NUM_OWNERS, rows_per_rank, impl=impl),
    )


def _bucketize(size: Size, source: _Source) -> Case:
    rows_per_rank = -(-size.num_rows // NUM_OWNERS)
    num = min(size.num_ids, size.num_rows)
    keys = source.unique_ids(num, size.num_rows)
    return Case(
        "bucketize_keys",
        16 * num + 8 * NUM_OWNERS,
        lambda impl: bucketize_keys([keys], NUM_OWNERS, [rows_per_rank], impl=impl).keys,
    )


def _expand(size: Size, source: _Source) -> Case:
    rows = source.rows(size.num_unique).requires_grad_()
    inverse, gradients = source.ids(size.num_ids, size.num_unique), source.rows(size.num_ids)

    def call(impl: Impl) -> torch.Tensor:
        expanded = expand_rows(rows, inverse, impl=impl)
        return torch.autograd.grad(expanded, rows, gradients)[0]

    forward = size.num_ids * (8 + 2 * size.row_bytes)
    backward = (size.num_ids + size.num_unique) * (size.row_bytes + 8)
    return Case("expand", forward + backward, call)


def _pool(size: Size, source: _Source) -> Case:
    rows = source.rows(size.num_unique).requires_grad_()
    ids = source.ids(size.num_ids, size.num_unique)
    num_bags = max(1, size.num_ids // 20)
    offsets = torch.linspace(0, size.num_ids, num_bags + 1).long().to(source.device)
    gradients = source.rows(num_bags)

    def call(impl: Impl) -> torch.Tensor:
        pooled = pool_rows(rows, ids, offsets, impl=impl)
        return torch.autograd.grad(pooled, rows, gradients)[0]

    forward = (size.num_ids + num_bags) * (size.row_bytes + 8)
    backward = size.num_ids * 24 + (num_bags + size.num_unique) * size.row_bytes
    return Case("pool", forward + backward, call)


def _attention(size: Size, source: _Source) -> Case:
    num_samples = max(1, size.num_ids // TOKENS_A_SAMPLE // 20)
    lengths = source.ids(num_samples, TOKENS_A_SAMPLE) + 1
    num_tokens = int(lengths.sum())
    padding = Padding.of(lengths, num_tokens)
    shape = (num_tokens, NUM_HEADS, max(16, size.dim // NUM_HEADS))
    q, k, v, gradients = (source.rows(num_tokens, shape[1] * shape[2]).view(shape) for _ in range(4))
    leaves = tuple(x.requires_grad_() for x in (q, k, v))

    def call(impl: Impl) -> torch.Tensor:
        attended = hstu_attention(q, k, v, padding, max_length=TOKENS_A_SAMPLE, impl=impl)
        return torch.cat(torch.autograd.grad(attended, leaves, gradients))

    return Case("hstu_attention", 0, call)


_BUILDERS: dict[str, Callable[[Size, _Source], Case]] = {
    "gather": _gather,
    "gather_pinned": _gather_pinned,
    "copy_rows": _copy_rows,
    "scatter_add": _scatter_add,
    "row_update": _row_update,
    "owner_major_keys": _owner_major,
    "bucketize_keys": _bucketize,
    "expand": _expand,
    "pool": _pool,
    "hstu_attention": _attention,
}
OPS = tuple(_BUILDERS)
_KEY_OPS = ("owner_major_keys", "bucketize_keys")
