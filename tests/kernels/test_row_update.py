"""Row updates: each kernel is as near the formula in float64 as plain torch is, and touches nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nestpipe.kernels.row_update import adagrad, adam, row_wise_adagrad, sgd
from tests.kernels.rows import DTYPES, assert_near_truth, huge_rows, random_rows

# An eps of the size of the gradients shows on which side of the root it stands.
LR, EPS, BETAS, STEP = 0.3, 0.5, (0.8, 0.9), 3
UPDATES: dict[str, tuple[Callable[..., None], dict[str, Any], tuple[str, ...]]] = {
    "sgd": (sgd, {"lr": LR}, ()),
    "row_wise_adagrad": (row_wise_adagrad, {"lr": LR, "eps": EPS}, ("row",)),
    "adagrad": (adagrad, {"lr": LR, "eps": EPS}, ("element",)),
    "adam": (adam, {"lr": LR, "eps": EPS, "betas": BETAS, "step": STEP}, ("element", "element")),
}
# (rows, positions, dim): none, one, a block less one, uneven, more columns than a program holds.
SIZES = ((0, 0, 8), (5, 0, 8), (1, 1, 1), (63, 15, 60), (100, 33, 33), (2, 1, 5000))
Tensors = list[torch.Tensor]


def truth(name: str, tensors: Tensors, gradients: torch.Tensor, decay: float) -> Tensors:
    """The formulas in float64: `tensors` are the rows and their state."""
    w, *state = (tensor.double() for tensor in tensors)
    g = gradients.double()
    if name == "adam":
        m = BETAS[0] * state[0] + (1 - BETAS[0]) * g
        v = BETAS[1] * state[1] + (1 - BETAS[1]) * g**2
        m_hat, v_hat = m / (1 - BETAS[0] ** STEP), v / (1 - BETAS[1] ** STEP)
        return [w - LR * (m_hat / (v_hat.sqrt() + EPS) + decay * w), m, v]
    g = g + decay * w
    if name == "sgd":
        return [w - LR * g]
    s = state[0] + (g**2 if name == "adagrad" else (g**2).mean(dim=1, keepdim=True))
    return [w - LR * g / (s.sqrt() + EPS), s]


def rows_and_state(name: str, num_rows: int, dim: int, dtype: torch.dtype, state: torch.dtype) -> Tensors:
    """Random rows and state; no state is negative, as none of a run is."""
    widths = {"row": 1, "element": dim}
    states = [
        random_rows(num_rows, widths[kind], torch.float64, seed).abs().to(state)
        for seed, kind in enumerate(UPDATES[name][2], start=5)
    ]
    return [random_rows(num_rows, dim, dtype), *states]


def guarded(tensors: Tensors, device: torch.device) -> tuple[Tensors, Tensors]:
    """Copies on `device`, and the row behind each of them, which nobody may touch."""
    blocks = [torch.cat([t, torch.full((1, t.shape[1]), 99, dtype=t.dtype)]).to(device) for t in tensors]
    return [block[:-1] for block in blocks], [block[-1] for block in blocks]


def check_update(
    name: str,
    num_rows: int,
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
    positions: torch.Tensor | None = None,
    decay: float = 0.0,
    state: torch.dtype | None = None,
) -> Tensors:
    """Both implementations against the truth; what the kernel made of the rows and the state."""
    function, arguments, _ = UPDATES[name]
    before = rows_and_state(name, num_rows, dim, dtype, state or dtype)
    touched = torch.arange(num_rows) if positions is None else positions
    gradients = random_rows(len(touched), dim, dtype, seed=3)
    expected = [tensor.double() for tensor in before]
    for tensor, values in zip(
        expected, truth(name, [t[touched] for t in before], gradients, decay), strict=True
    ):
        tensor[touched] = values
    at = None if positions is None else positions.to(device)
    arguments = arguments | {"weight_decay": decay, "positions": at, "bounds": True}
    found, guards = guarded(before, device)
    function(*found, gradients.clone().to(device), **arguments, impl="triton")
    plain = [tensor.clone().to(device) for tensor in before]
    function(*plain, gradients.clone().to(device), **arguments, impl="reference")
    for mine, reference, goal in zip(found, plain, expected, strict=True):
        assert_near_truth(mine, reference, goal)
        if dtype is torch.float32:
            torch.testing.assert_close(reference.cpu(), goal.float(), rtol=1e-5, atol=1e-6)
    assert all(bool((guard == 99).all()) for guard in guards)
    return found


@pytest.mark.parametrize(("num_rows", "num", "dim"), SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UPDATES)
def test_kernel_is_near_the_truth(
    name: str, dtype: torch.dtype, num_rows: int, num: int, dim: int, device: torch.device
) -> None:
    check_update(name, num_rows, dim, dtype, device)
    positions = torch.randperm(num_rows, generator=torch.Generator().manual_seed(num))[:num]
    check_update(name, num_rows, dim, dtype, device, positions, decay=0.2)


@pytest.mark.parametrize("name", UPDATES)
def test_float64_stays_float64(name: str, device: torch.device) -> None:
    before = rows_and_state(name, 7, 9, torch.float64, torch.float64)
    gradients = random_rows(7, 9, torch.float64, seed=3)
    found = [tensor.clone().to(device) for tensor in before]
    function, arguments, _ = UPDATES[name]
    function(*found, gradients.to(device), **arguments, weight_decay=0.2, impl="triton")
    for mine, goal in zip(found, truth(name, before, gradients, 0.2), strict=True):
        torch.testing.assert_close(mine.cpu(), goal, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", UPDATES)
def test_low_precision_is_rounded_once(name: str, device: torch.device) -> None:
    found = check_update(name, 40, 60, torch.float16, device, decay=0.2, state=torch.float32)
    before = rows_and_state(name, 40, 60, torch.float16, torch.float32)
    rounded = truth(name, before, random_rows(40, 60, torch.float16, seed=3), 0.2)[0].half()
    # A value in the middle of two may go either way; plain torch misses a quarter of them.
    assert float((found[0].cpu() != rounded).double().mean()) < 0.01


@pytest.mark.parametrize("name", ["sgd", "row_wise_adagrad"])
def test_addresses_beyond_32_bits(name: str, device: torch.device) -> None:
    rows = huge_rows(device)
    states = [torch.empty(len(rows), 1, device=device) for _ in UPDATES[name][2]]
    for tensor in (rows, *states):
        tensor[-1] = 1
    last = torch.tensor([len(rows) - 1], device=device)
    function, arguments, _ = UPDATES[name]
    gradients = torch.ones(1, 8, device=device)
    function(rows, *states, gradients, **arguments, positions=last, impl="triton")
    expected = truth(name, [torch.ones(1, 8), torch.ones(1, 1)][: 1 + len(states)], torch.ones(1, 8), 0.0)
    torch.testing.assert_close(rows[-1:].cpu(), expected[0].half())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": torch.zeros(3, 5).t()}, ValueError, "adagrad: rows must be contiguous"),
        ({"rows": torch.zeros(5, 3).long()}, TypeError, "rows must be of a floating-point dtype"),
        ({"total": torch.zeros(5, 1)}, ValueError, r"total must be of shape \[5, 3\], got \[5, 1\]"),
        ({"total": torch.zeros(5, 3).half()}, TypeError, "total must be torch.float32 as the rows"),
        ({"gradients": torch.zeros(5, 3)}, ValueError, r"gradients must be of shape \[2, 3\]"),
        ({"gradients": torch.zeros(2, 3, device="meta")}, ValueError, "rows on cpu, gradients on meta"),
        ({"positions": torch.tensor([0, 1]).int()}, TypeError, "positions must be an int64 vector"),
        ({"positions": torch.tensor([0, 5])}, IndexError, "positions has 5, which is outside 0 to 4"),
        ({"positions": torch.tensor([1, 1])}, ValueError, "positions must be unique"),
    ],
)
def test_bad_input_is_named(change: dict[str, torch.Tensor], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {
        "rows": torch.zeros(5, 3),
        "total": torch.zeros(5, 3),
        "gradients": torch.zeros(2, 3),
        "positions": torch.tensor([0, 4]),
        "lr": 0.1,
        "eps": 1e-8,
    }
    with pytest.raises(error, match=message):
        adagrad(**arguments | change, bounds=True)


def test_adam_counts_steps_from_1() -> None:
    with pytest.raises(ValueError, match="step counts from 1, got 0"):
        adam(*(torch.zeros(2, 3) for _ in range(4)), lr=0.1, betas=BETAS, eps=1e-8, step=0)
