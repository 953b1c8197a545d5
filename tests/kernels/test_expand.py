"""Expansion: forward exact, the gradient as near float64 as plain torch's, hot rows and no rows included."""

from __future__ import annotations

import pytest
import torch

from nestpipe.kernels.dispatch import Impl
from nestpipe.kernels.expand import expand_rows
from nestpipe.kernels.occurrences import Occurrences
from tests.kernels.rows import (
    BACKWARD,
    DTYPES,
    SIZES,
    assert_near_truth,
    huge_rows,
    random_positions,
    random_rows,
)


def gradient(
    impl: Impl, rows: torch.Tensor, inverse: torch.Tensor, of_out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The expanded rows and the gradient of `rows`."""
    rows = rows.detach().requires_grad_()
    out = expand_rows(rows, inverse, impl=impl, bounds=True)
    out.backward(of_out)
    assert rows.grad is not None
    return out.detach(), rows.grad


def check(rows: torch.Tensor, inverse: torch.Tensor, device: torch.device) -> None:
    """Both implementations against the truth, the gradients of all ids different."""
    rows, inverse = rows.to(device), inverse.to(device)
    of_out = random_rows(len(inverse), rows.shape[1], rows.dtype, seed=2).to(device)
    found, of_rows = gradient("triton", rows, inverse, of_out)
    assert torch.equal(found, rows[inverse])
    plain, plain_of_rows = gradient("reference", rows, inverse, of_out)
    assert torch.equal(plain, found)
    truth = torch.zeros(rows.shape, dtype=torch.float64).index_add(0, inverse.cpu(), of_out.double().cpu())
    assert_near_truth(of_rows, plain_of_rows, truth, BACKWARD)
    assert not of_rows[truth.abs().sum(1).to(device) == 0].any()


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial sums of few occurrences, as interpreting takes a while for each."""
    from nestpipe.kernels.pool.triton import sums

    monkeypatch.setattr(sums, "BLOCK", 32)


@pytest.mark.parametrize(("num_rows", "num", "dim"), [*SIZES[:-1], (3, 2, 0), (4, 9, 1200)])
def test_gradient_is_near_the_truth(num_rows: int, num: int, dim: int, device: torch.device) -> None:
    check(random_rows(num_rows, dim, torch.float32), random_positions(num, num_rows), device)


def test_no_rows(device: torch.device) -> None:
    check(torch.empty(0, 8), torch.empty(0, dtype=torch.int64), device)


@pytest.mark.parametrize("num", [127, 128, 270])
def test_all_ids_the_same(num: int, device: torch.device) -> None:
    check(random_rows(3, 40, torch.float32), torch.ones(num, dtype=torch.int64), device)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_hot_rows_that_start_and_end_inside_blocks(dtype: torch.dtype, device: torch.device) -> None:
    counts = torch.tensor([3, 0, 75, 31, 32, 25, 65, 1, 150, 0])
    inverse = torch.repeat_interleave(counts)
    mixed = inverse[torch.randperm(len(inverse), generator=torch.Generator().manual_seed(0))]
    check(random_rows(len(counts), 24, dtype), mixed, device)


def test_the_gradient_repeats_bit_by_bit(device: torch.device) -> None:
    rows, of_out = (random_rows(n, 64, torch.float32).to(device) for n in (9, 200))
    inverse = random_positions(200, 9).to(device)
    impls: tuple[Impl, ...] = ("triton", "reference")
    for impl in impls:
        first, again = (gradient(impl, rows, inverse, of_out)[1] for _ in range(2))
        assert torch.equal(first, again), impl


def test_a_gradient_need_not_be_contiguous(device: torch.device) -> None:
    rows = torch.ones(3, 4, device=device, requires_grad=True)
    expand_rows(rows, torch.tensor([2, 0, 2], device=device), impl="triton").sum().backward()
    assert rows.grad is not None
    assert rows.grad[:, 0].tolist() == [1, 0, 2]


def test_addresses_beyond_32_bits(device: torch.device) -> None:
    rows = huge_rows(device)
    rows[-1] = 7
    last = torch.tensor([len(rows) - 1], device=device)
    assert torch.equal(expand_rows(rows, last, impl="triton"), rows[-1:])


@pytest.mark.parametrize("num_rows", [40, 2**15, 2**17])
def test_occurrences_are_in_order(num_rows: int, device: torch.device) -> None:
    positions = random_positions(200, num_rows).to(device)
    positions[::3] = num_rows - 1
    found = Occurrences.of(positions, num_rows)
    assert found.rows.tolist() == sorted(positions.tolist())
    assert len(found.offsets) == num_rows + 1
    for row in (0, int(positions[1]), num_rows - 1):
        mine = found.order[found.offsets[row] : found.offsets[row + 1]]
        assert torch.equal(mine, (positions == row).nonzero().view(-1))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda r, i: (r.t(), i), ValueError, "expand_rows: rows must be contiguous"),
        (lambda r, i: (r.long(), i), TypeError, "rows must be of a floating-point dtype"),
        (lambda r, i: (r, i.int()), TypeError, "inverse must be an int64 vector"),
        (lambda r, i: (r, i.to("meta")), ValueError, "inverse on meta"),
        (lambda r, i: (r, i + 4), IndexError, "inverse has 5, which is outside 0 to 4"),
        (lambda r, i: (r, i - 1), IndexError, "inverse has -1"),
    ],
)
def test_bad_input_is_named(change, error: type[Exception], message: str, device: torch.device) -> None:
    rows, inverse = torch.zeros(5, 3, device=device), torch.tensor([0, 1], device=device)
    with pytest.raises(error, match=message):
        expand_rows(*change(rows, inverse), bounds=True)
