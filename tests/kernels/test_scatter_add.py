"""Scatter-add: the kernels' sums are near the truth, those in order of occurrence equal the CPU's."""

from __future__ import annotations

import pytest
import torch

from nestpipe.kernels.scatter_add import SortedPositions, scatter_add_rows, sort_positions
from tests.kernels.rows import DTYPES, assert_near_truth, huge_rows, random_positions, random_rows

# (rows, additions, dim): none, one, fewer than a block, uneven with duplicates, one row for all, wide.
SIZES = ((5, 0, 8), (1, 1, 1), (63, 15, 60), (30, 70, 33), (1, 40, 60), (4, 5, 1200))


def sums(rows: torch.Tensor, positions: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """The truth, in float64."""
    one_hot = torch.nn.functional.one_hot(positions, len(rows)).double()
    return rows.double() + one_hot.t() @ gradients.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "num", "dim"), SIZES)
def test_sums_are_near_the_truth(
    num_rows: int, num: int, dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    rows, gradients = random_rows(num_rows, dim, dtype), random_rows(num, dim, dtype, seed=2)
    positions = random_positions(num, num_rows)
    truth = sums(rows, positions, gradients)
    plain = rows.clone().index_add_(0, positions, gradients)
    out = rows.clone().to(device)
    arguments = positions.to(device), gradients.to(device)
    assert scatter_add_rows(out, *arguments, impl="triton", bounds=True) is out
    assert_near_truth(out, plain, truth)
    if dtype is torch.float32:
        assert torch.equal(out.cpu(), plain)
    reference = scatter_add_rows(rows.clone().to(device), *arguments, impl="reference")
    assert_near_truth(reference, plain, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter adds no bfloat16
@pytest.mark.parametrize(("num_rows", "num", "dim"), SIZES[:-2])
def test_atomics_are_near_the_truth(
    num_rows: int, num: int, dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    rows, gradients = random_rows(num_rows, dim, dtype), random_rows(num, dim, dtype, seed=2)
    positions = random_positions(num, num_rows)
    plain = rows.clone().index_add_(0, positions, gradients)
    out = rows.clone().to(device)
    scatter_add_rows(out, positions.to(device), gradients.to(device), deterministic=False, impl="triton")
    assert_near_truth(out, plain, sums(rows, positions, gradients))


def test_float64_stays_float64(device: torch.device) -> None:
    rows, gradients = random_rows(3, 9, torch.float64), random_rows(20, 9, torch.float64, seed=2)
    positions = random_positions(20, 3)
    out = rows.clone().to(device)
    scatter_add_rows(out, positions.to(device), gradients.to(device), impl="triton")
    assert torch.equal(out.cpu(), rows.index_add_(0, positions, gradients))


def test_low_precision_is_rounded_once(device: torch.device) -> None:
    gradients = random_rows(40, 60, torch.float16)  # the interpreter cuts bfloat16 off
    positions = torch.zeros(40, dtype=torch.int64)
    out = torch.zeros(1, 60, dtype=torch.float16, device=device)
    scatter_add_rows(out, positions.to(device), gradients.to(device), impl="triton")
    summed = torch.zeros(1, 60).index_add_(0, positions, gradients.float())
    assert torch.equal(out.cpu(), summed.half())


def test_equal_positions_are_added_in_order_of_occurrence(device: torch.device) -> None:
    # 1 is lost beside 2**25 in float32: each order of these four has a sum of its own.
    values = torch.tensor([1.0, 2.0**25, 1.0, -(2.0**25)])
    for order in torch.tensor([[0, 1, 2, 3], [1, 3, 0, 2], [1, 0, 3, 2]]):
        gradients = values[order].view(4, 1).to(device)
        out = torch.zeros(1, 1, device=device)
        scatter_add_rows(out, torch.zeros(4, dtype=torch.int64, device=device), gradients, impl="triton")
        assert out.item() == sum(values[order].tolist(), torch.zeros(())).item()


def test_equal_positions_across_programs(device: torch.device) -> None:
    # A program has 16 places of rows this wide: position 1 begins in the first and ends in the fourth.
    positions = torch.tensor([0] * 10 + [1] * 45 + [2] * 9)
    gradients, rows = random_rows(64, 128, torch.float32), random_rows(4, 128, torch.float32, seed=1)
    out = rows.clone().to(device)
    scatter_add_rows(out, positions.to(device), gradients.to(device), impl="triton")
    assert torch.equal(out.cpu(), rows.index_add_(0, positions, gradients))


def test_positions_sorted_ahead(device: torch.device) -> None:
    positions, gradients = random_positions(50, 7).to(device), random_rows(50, 12, torch.float32).to(device)
    ahead = sort_positions(positions, 7, impl="triton")
    assert ahead is not None
    assert torch.equal(ahead.positions, positions[ahead.order])
    outs = [
        scatter_add_rows(
            torch.zeros(7, 12, device=device), positions, gradients, sorted_positions=found, impl="triton"
        )
        for found in (None, ahead)
    ]
    assert torch.equal(*outs)
    assert sort_positions(positions, 7, impl="reference") is None


def test_addresses_beyond_32_bits(device: torch.device) -> None:
    out = huge_rows(device)
    out[-1] = 1
    last = torch.tensor([len(out) - 1], device=device)
    for deterministic in (True, False):
        scatter_add_rows(out, last, torch.ones_like(out[-1:]), deterministic=deterministic, impl="triton")
    assert out[-1].tolist() == [3.0] * 8


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"out": torch.zeros(3, 5).t()}, ValueError, "out must be contiguous"),
        ({"out": torch.zeros(5, 3).long()}, TypeError, "out must be of a floating-point dtype"),
        (
            {"gradients": torch.zeros(2, 3).half()},
            ValueError,
            "gradients must be torch.float32 with 3 columns",
        ),
        ({"gradients": torch.zeros(2, 4)}, ValueError, "gradients must be torch.float32 with 3 columns"),
        ({"gradients": torch.zeros(3, 3)}, ValueError, "positions must have 3 elements, got 2"),
        (
            {"gradients": torch.zeros(2, 3, device="meta")},
            ValueError,
            ".*out on cpu, positions on cpu, gradients on meta",
        ),
        ({"positions": torch.tensor([0, 1]).int()}, TypeError, "positions must be an int64 vector"),
        ({"positions": torch.tensor([0, 5])}, IndexError, "positions has 5, which is outside 0 to 4"),
    ],
)
def test_bad_input_is_named(change: dict[str, torch.Tensor], error: type[Exception], message: str) -> None:
    tensors = {
        "out": torch.zeros(5, 3),
        "positions": torch.tensor([0, 4]),
        "gradients": torch.zeros(2, 3),
    }
    with pytest.raises(error, match=f"scatter_add_rows: {message}"):
        scatter_add_rows(**tensors | change, bounds=True)  # type: ignore[arg-type]


def test_sorted_positions_of_others_are_refused(device: torch.device) -> None:
    one = torch.tensor([0], device=device)
    with pytest.raises(ValueError, match="sorted_positions must have 2 elements, got 1"):
        scatter_add_rows(
            torch.zeros(5, 3, device=device),
            torch.tensor([0, 4], device=device),
            torch.zeros(2, 3, device=device),
            sorted_positions=SortedPositions(one, one),
            impl="triton",
        )
