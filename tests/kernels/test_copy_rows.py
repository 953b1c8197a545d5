"""Copy of rows: the kernel moves what plain indexing does and nothing else, and says what it cannot take."""

from __future__ import annotations

import pytest
import torch

from nestpipe.kernels.copy_rows import copy_rows
from nestpipe.kernels.dispatch import Impl
from tests.kernels.rows import DTYPES, huge_rows, random_positions, random_rows

# (rows of the source, rows of the target, copied, dim): none, one, fewer than a block, uneven, state of
# one element a row, more columns than a program holds.
SIZES = ((5, 4, 0, 8), (1, 1, 1, 1), (63, 40, 15, 60), (100, 80, 70, 33), (300, 700, 600, 1), (4, 9, 5, 1200))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_source", "num_target", "num", "dim"), SIZES)
@pytest.mark.parametrize("impl", ["triton", "reference"])
def test_copy_is_exact(
    num_source: int, num_target: int, num: int, dim: int, dtype: torch.dtype, impl: Impl, device: torch.device
) -> None:
    source = random_rows(num_source, dim, dtype).to(device)
    origins = random_positions(num, num_source).to(device)
    places = torch.randperm(num_target, generator=torch.Generator().manual_seed(2))[:num].to(device)
    before = random_rows(num_target, dim, dtype, seed=3).to(device)
    for positions, values in ((origins, source), (None, source[origins])):
        target, expected = before.clone(), before.clone()
        copy_rows(values, positions, target, places, impl=impl, bounds=True)
        expected[places] = source[origins]
        assert torch.equal(target, expected)


def test_addresses_beyond_32_bits(device: torch.device) -> None:
    table = huge_rows(device)
    ends = torch.tensor([0, len(table) - 1], device=device)
    values = random_rows(2, 8, table.dtype).to(device)
    copy_rows(values, None, table, ends, impl="triton")
    assert torch.equal(table[ends], values)
    copy_rows(table, ends.flip(0), table, ends, impl="triton")
    assert torch.equal(table[ends], values.flip(0))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"source": torch.zeros(3, 5).t()}, ValueError, "source must be contiguous"),
        ({"target": torch.zeros(4)}, ValueError, r"target must be a matrix"),
        ({"target": torch.zeros(4, 3).half()}, ValueError, "must be alike, got torch.float32"),
        ({"target": torch.zeros(4, 2)}, ValueError, "must be alike"),
        (
            {"source_positions": torch.tensor([0, 1]).int()},
            TypeError,
            "source_positions must be an int64 vector",
        ),
        ({"source_positions": torch.tensor([0])}, ValueError, "target_positions must have 1 elements, got 2"),
        ({"source_positions": None}, ValueError, "target_positions must have 5 elements, got 2"),
        (
            {"target_positions": torch.zeros(2, dtype=torch.int64, device="meta")},
            ValueError,
            "source_positions on cpu, target_positions on meta",
        ),
        (
            {"source_positions": torch.tensor([0, 5])},
            IndexError,
            "source_positions has 5, which is outside 0 to 4",
        ),
        ({"target_positions": torch.tensor([-1, 3])}, IndexError, "target_positions has -1"),
        ({"target_positions": torch.tensor([3, 3])}, ValueError, "target_positions must be unique"),
    ],
)
def test_bad_input_is_named(
    change: dict[str, torch.Tensor | None], error: type[Exception], message: str
) -> None:
    arguments = {
        "source": torch.zeros(5, 3),
        "source_positions": torch.tensor([0, 1]),
        "target": torch.zeros(4, 3),
        "target_positions": torch.tensor([3, 2]),
    }
    with pytest.raises(error, match=f"copy_rows: .*{message}"):
        copy_rows(**arguments | change, bounds=True)  # type: ignore[arg-type]


def test_kernel_refuses_memory_it_cannot_reach(device: torch.device) -> None:
    source, positions = torch.zeros(1, 2, device=device), torch.tensor([0], device=device)
    message = f"target must be on {positions.device} or in pinned host memory, it is on meta"
    with pytest.raises(ValueError, match=message):
        copy_rows(source, positions, torch.zeros(1, 2, device="meta"), positions, impl="triton")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_pinned_host_memory_is_written_in_place() -> None:
    table = random_rows(1000, 60, torch.float32).pin_memory()
    places = torch.randperm(1000)[:300]
    values = random_rows(300, 60, torch.float32, seed=5)
    expected = table.clone()
    expected[places] = values
    copy_rows(values.cuda(), None, table, places.cuda(), impl="triton")
    torch.cuda.synchronize()
    assert torch.equal(table, expected)
