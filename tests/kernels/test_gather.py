"""Gather: the kernel equals plain torch exactly, at awkward sizes, and says what it cannot take."""

from __future__ import annotations

import pytest
import torch

from nestpipe.kernels.gather import gather_rows, gather_rows_staged
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_staged_gather_is_exact(dtype: torch.dtype, device: torch.device) -> None:
    table, rows = random_rows(63, 33, dtype), random_positions(15, 63)
    staging = torch.full((20, 33), float("nan"), dtype=dtype, pin_memory=device.type == "cuda")
    for part in (rows, rows[:1], rows[:0]):
        out = torch.full((len(part), 33), float("nan"), dtype=dtype, device=device)
        assert gather_rows_staged(table, part, staging, out, bounds=True) is out
        assert torch.equal(out.cpu(), table[part])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"staging": torch.zeros(1, 3)},
            ValueError,
            r"staging must be torch.float32 \[2, 3\], got .* \[1, 3\]",
        ),
        ({"staging": torch.zeros(4, 3).half()}, ValueError, "staging must be torch.float32"),
        ({"staging": torch.zeros(4, 3, device="meta")}, ValueError, "rows on cpu, staging on meta"),
        ({"out": torch.zeros(3, 3)}, ValueError, r"out must be torch.float32 \[2, 3\]"),
        ({"out": torch.zeros(2, 3, device="meta")}, ValueError, "staging must be in pinned memory"),
        ({"rows": torch.tensor([0, 5])}, IndexError, "rows has 5, which is outside 0 to 4"),
    ],
)
def test_bad_staging_is_named(change: dict[str, torch.Tensor], error: type[Exception], message: str) -> None:
    tensors = {
        "table": torch.zeros(5, 3),
        "rows": torch.tensor([0, 1]),
        "staging": torch.zeros(4, 3),
        "out": torch.zeros(2, 3),
    }
    with pytest.raises(error, match=f"gather_rows_staged: .*{message}"):
        gather_rows_staged(**tensors | change, bounds=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_pinned_host_memory_is_read_in_place() -> None:
    table, rows = random_rows(1000, 60, torch.float32).pin_memory(), random_positions(300, 1000)
    assert torch.equal(gather_rows(table, rows.cuda(), impl="triton").cpu(), table[rows])
    with pytest.raises(ValueError, match="table must be on cuda:0 or in pinned host memory"):
        gather_rows(torch.zeros(3, 3), torch.tensor([0], device="cuda"), impl="triton")


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
