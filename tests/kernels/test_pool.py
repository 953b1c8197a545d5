"""Pooling: output and gradients by name as near float64 as plain torch's, empty bags included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from nestpipe.kernels.dispatch import Impl
from nestpipe.kernels.pool import Mode, pool_rows
from tests.kernels.rows import (
    BACKWARD,
    DTYPES,
    FORWARD,
    assert_near_truth,
    huge_rows,
    random_positions,
    random_rows,
)

# (rows, ids of each bag, dim): no bag, no id, one, many for a few rows, wide.
CASES: tuple[tuple[int, list[int], int], ...] = (
    (4, [], 8),
    (5, [0, 0], 8),
    (1, [1], 1),
    (9, [65, 2, 63, 7, 0], 33),
    (7, [5, 1], 1200),
)
MODES: tuple[Mode, ...] = ("sum", "mean")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Bags:
    """What is pooled, and the gradient of the outcome."""

    mode: Mode
    rows: torch.Tensor
    ids: torch.Tensor | None
    offsets: torch.Tensor
    weights: torch.Tensor | None
    of_out: torch.Tensor

    def to(self, device: torch.device) -> Bags:
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


def pooled(bags: Bags, impl: Impl) -> Tensors:
    """The output and every gradient by name."""
    rows = bags.rows.detach().requires_grad_()
    weights = None if bags.weights is None else bags.weights.detach().requires_grad_()
    out = pool_rows(rows, bags.ids, bags.offsets, bags.mode, weights, impl=impl, bounds=True)
    out.backward(bags.of_out)
    found = {"out": out.detach(), "rows": rows.grad, "weights": None if weights is None else weights.grad}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def truth(bags: Bags) -> Tensors:
    """The formula in float64, by a matrix [S, num_ids] that says how much an id counts in a bag."""
    lengths = bags.offsets.diff()
    num_ids = int(lengths.sum())
    member = torch.zeros(len(lengths), num_ids, dtype=torch.float64)
    member[torch.repeat_interleave(lengths), torch.arange(num_ids)] = 1
    if bags.mode == "mean":
        member = member / lengths.clamp(min=1)[:, None]
    share = torch.ones(num_ids, dtype=torch.float64) if bags.weights is None else bags.weights.double()
    ids = torch.arange(num_ids) if bags.ids is None else bags.ids
    each = bags.rows.double()[ids]
    of_each = member.t() @ bags.of_out.double()
    of_rows = torch.zeros(bags.rows.shape, dtype=torch.float64)
    return {
        "out": member @ (share[:, None] * each),
        "rows": of_rows.index_add(0, ids, of_each * share[:, None]),
        "weights": (of_each * each).sum(1),
    }


def bags_of(
    mode: Mode, rows: torch.Tensor, ids: torch.Tensor | None, lengths: Sequence[int], weighted: bool
) -> Bags:
    """Bags of `lengths`, with random weights and gradient."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    weights = random_rows(1, int(offsets[-1]), rows.dtype, seed=4)[0] if weighted else None
    of_out = random_rows(len(lengths), rows.shape[1], rows.dtype, seed=2)
    return Bags(mode, rows, ids, offsets, weights, of_out)


def check(bags: Bags, device: torch.device) -> None:
    """Both implementations against the truth."""
    found, plain = pooled(bags.to(device), "triton"), pooled(bags.to(device), "reference")
    assert list(found) == ["out", "rows", *([] if bags.weights is None else ["weights"])]
    expected = truth(bags)
    for name, tensor in found.items():
        factor = FORWARD if name == "out" else BACKWARD
        assert_near_truth(tensor, plain[name], expected[name], factor)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch, interpreter: None) -> None:
    """Partial sums of few occurrences, as interpreting takes a while for each."""
    from nestpipe.kernels.pool.triton import sums

    monkeypatch.setattr(sums, "BLOCK", 32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_are_near_the_truth(
    dtype: torch.dtype, mode: Mode, weighted: bool, device: torch.device
) -> None:
    lengths = [0, 3, 0, 15, 1, 0]
    ids = random_positions(sum(lengths), 12)
    check(bags_of(mode, random_rows(12, 60, dtype), ids, lengths, weighted), device)
    check(bags_of(mode, random_rows(sum(lengths), 60, dtype), None, lengths, weighted), device)


@pytest.mark.parametrize(("num_rows", "lengths", "dim"), CASES)
def test_awkward_sizes(num_rows: int, lengths: list[int], dim: int, device: torch.device) -> None:
    ids = random_positions(sum(lengths), num_rows)
    check(bags_of("mean", random_rows(num_rows, dim, torch.float32), ids, lengths, True), device)
    check(bags_of("sum", random_rows(sum(lengths), dim, torch.bfloat16), None, lengths, False), device)


def test_all_ids_the_same(device: torch.device) -> None:
    ids = torch.full((130,), 2)
    check(bags_of("mean", random_rows(3, 16, torch.float32), ids, [40, 0, 89, 1], True), device)


def test_float64_stays_float64(device: torch.device) -> None:
    rows = random_rows(6, 5, torch.float64)
    check(bags_of("mean", rows, random_positions(80, 6), [70, 0, 10], True), device)


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_no_rows_and_no_ids(impl: Impl, device: torch.device) -> None:
    rows = torch.empty(0, 4, device=device, requires_grad=True)
    none, offsets = torch.empty(0, dtype=torch.int64, device=device), torch.zeros(3, dtype=torch.int64)
    out = pool_rows(rows, none, offsets.to(device), impl=impl)
    out.sum().backward()
    assert out.tolist() == [[0.0] * 4] * 2
    assert rows.grad is not None


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_a_weighted_mean_divides_by_the_number_of_ids(impl: Impl, device: torch.device) -> None:
    rows, weights = torch.ones(2, 8, device=device), torch.tensor([4.0, 2.0], device=device)
    ids, offsets = torch.tensor([0, 1], device=device), torch.tensor([0, 2], device=device)
    assert pool_rows(rows, ids, offsets, "mean", weights, impl=impl)[0, 0] == 3


@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_gradients_repeat_bit_by_bit(impl: Impl, device: torch.device) -> None:
    rows = random_rows(9, 64, torch.float32)
    bags = bags_of("mean", rows, random_positions(100, 9), [10, 0, 50, 40], True).to(device)
    first, again = pooled(bags, impl), pooled(bags, impl)
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name]), name


def test_addresses_beyond_32_bits(device: torch.device) -> None:
    rows = huge_rows(device)
    rows[-1] = 7
    ids = torch.tensor([len(rows) - 1], device=device)
    assert torch.equal(pool_rows(rows, ids, torch.tensor([0, 1], device=device), impl="triton"), rows[-1:])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": torch.zeros(3, 5).t()}, ValueError, "pool_rows: rows must be contiguous"),
        ({"rows": torch.zeros(5, 3).long()}, TypeError, "rows must be of a floating-point dtype"),
        ({"ids": torch.tensor([0, 1]).int()}, TypeError, "ids must be an int64 vector"),
        ({"ids": torch.tensor([0, 5])}, IndexError, "ids has 5, which is outside 0 to 4"),
        ({"ids": None}, ValueError, "offsets must rise from 0 to 5"),
        ({"offsets": torch.tensor([0, 1]).int()}, TypeError, "offsets must be an int64 vector"),
        ({"offsets": torch.tensor([0, 1])}, ValueError, "offsets must rise from 0 to 2"),
        ({"offsets": torch.tensor([0, 2, 1, 2])}, ValueError, "offsets must rise"),
        ({"offsets": torch.tensor([], dtype=torch.int64)}, ValueError, "offsets must have"),
        ({"offsets": torch.tensor([0, 2], device="meta")}, ValueError, "offsets on meta"),
        ({"mode": "max"}, ValueError, 'mode must be "sum" or "mean", got \'max\''),
        ({"weights": torch.zeros(3)}, TypeError, r"weights must be torch.float32 \[2\], got"),
        ({"weights": torch.zeros(2).half()}, TypeError, r"torch.float32 \[2\], got torch.float16"),
        ({"weights": torch.zeros(4)[::2]}, ValueError, "weights must be contiguous"),
    ],
)
def test_bad_input_is_named(change, error: type[Exception], message: str) -> None:
    arguments = {
        "rows": torch.zeros(5, 3),
        "ids": torch.tensor([0, 4]),
        "offsets": torch.tensor([0, 1, 2]),
        "mode": "sum",
        "weights": None,
    }
    with pytest.raises(error, match=message):
        pool_rows(**arguments | change, bounds=True)
