"""Gather: the kernel equals plain torch exactly, at awkward sizes, and says what it cannot take."""

from __future__ import annotations

import pytest
import torch

from nestpipe.kernels.gather import gather_rows
from tests.kernels.rows import DTYPES, SIZES, huge_rows, random_positions, random_rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "num", "dim"), SIZES)
def test_gather_is_exact(num_rows: int, num: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    table = random_rows(num_rows, dim, dtype).to(device)
    rows = random_positions(num, num_rows).to(device)
    out = torch.full((num, dim), float("nan"), dtype=dtype, device=device)
    assert gather_rows(table, rows, out, impl="triton") is out
    assert torch.equal(out, table[rows])
    assert torch.equal(gather_rows(table, rows, impl="reference"), table[rows])


def test_addresses_beyond_32_bits(device: torch.device) -> None:
    table = huge_rows(device)
    table[-1] = 7
    last = torch.tensor([len(table) - 1, 0], device=device)
    assert torch.equal(gather_rows(table, last, impl="triton")[0], table[-1])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t, r: (t.t(), r), ValueError, "table must be contiguous"),
        (lambda t, r: (t, r.int()), TypeError, "rows must be an int64 vector"),
        (lambda t, r: (t.long(), r), TypeError, "floating-point"),
        (lambda t, r: (t, r + 4), IndexError, "rows has 5, which is outside 0 to 4"),
        (lambda t, r: (t, r - 1), IndexError, "rows has -1"),
    ],
)
def test_bad_input_is_named(change, error: type[Exception], message: str, device: torch.device) -> None:
    table, rows = torch.zeros(5, 3, device=device), torch.tensor([0, 1], device=device)
    with pytest.raises(error, match=message):
        gather_rows(*change(table, rows), bounds=True)
