"""Rows and positions at awkward sizes, and how far a kernel may be from the truth."""

from __future__ import annotations

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# (rows of the table, positions, dim): none, one, a block less one, uneven, wide.
SIZES = ((5, 0, 8), (1, 1, 1), (63, 15, 60), (100, 257, 33), (40, 50, 1200))
FORWARD, BACKWARD = 2.0, 5.0
"""Times the plain version's error at the same dtype that a kernel's may be."""


def random_rows(num_rows: int, dim: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normal values [num_rows, dim], the same for a seed on every device."""
    return torch.randn(num_rows, dim, generator=torch.Generator().manual_seed(seed)).to(dtype)


def huge_rows(device: torch.device) -> torch.Tensor:
    """Rows [2**28 + 2, 8] of 2**31 + 16 elements, undefined; memory that nobody touches is never taken."""
    return torch.empty(2**28 + 2, 8, dtype=torch.float16, device=device)


def random_positions(num: int, num_rows: int, seed: int = 1) -> torch.Tensor:
    """Positions [num] in 0 to num_rows - 1, with duplicates."""
    return torch.randint(num_rows, (num,), generator=torch.Generator().manual_seed(seed))


def assert_near_truth(
    found: torch.Tensor, plain: torch.Tensor, truth: torch.Tensor, factor: float = FORWARD
) -> None:
    """`found` is at most `factor` times as far from the float64 `truth` as `plain`, of the same dtype, is.

    Where the plain version happens to be exact, half a unit in the last place of the largest is granted.
    """
    assert truth.dtype == torch.float64
    assert found.dtype == plain.dtype
    error, usual = _error(found, truth), _error(plain, truth)
    granted = torch.finfo(plain.dtype).eps / 2 * float(truth.abs().max()) if truth.numel() else 0.0
    assert error <= factor * max(usual, granted), f"error {error:.3g}, the plain version's {usual:.3g}"


def _error(values: torch.Tensor, truth: torch.Tensor) -> float:
    return float((values.double().cpu() - truth.cpu()).abs().max()) if truth.numel() else 0.0
