"""Bucketise: keys by owner equal those that a list would give, at awkward sizes."""

from __future__ import annotations

import pytest
import torch

from nestpipe.kernels.bucketize import bucketize_keys, owner_major_keys
from nestpipe.kernels.dispatch import Impl

IMPLS = ("reference", "triton")


def ascending(num: int, num_owners: int, rows_per_rank: int, seed: int) -> torch.Tensor:
    """Keys [num] in order, with duplicates."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(num_owners * rows_per_rank, (num,), generator=generator).sort().values


def by_lists(
    segments: list[torch.Tensor], num_owners: int, rows_per_rank: list[int]
) -> tuple[list[int], list[list[int]]]:
    """Keys by owner, and how many of each owner and segment."""
    pairs = list(zip(segments, rows_per_rank, strict=True))
    pieces = [
        [[key for key in keys.tolist() if key // num_rows == owner] for keys, num_rows in pairs]
        for owner in range(num_owners)
    ]
    counts = [[len(piece) for piece in of_owner] for of_owner in pieces]
    return [key for of_owner in pieces for piece in of_owner for key in piece], counts


# Keys of each segment: none at all, one, uneven, more than a program takes; more owners than a program takes.
@pytest.mark.parametrize(
    ("sizes", "num_owners"),
    [
        ([0], 1),
        ([0, 0], 3),
        ([1], 1),
        ([63, 0, 1, 64], 2),
        ([2500, 5], 3),
        ([300, 17], 8),
        ([90], 600),
    ],
)
@pytest.mark.parametrize("impl", IMPLS)
def test_keys_by_owner(sizes: list[int], num_owners: int, impl: Impl, device: torch.device) -> None:
    rows_per_rank = [5 + 40 * index for index in range(len(sizes))]
    segments = [
        ascending(num, num_owners, num_rows, seed)
        for seed, (num, num_rows) in enumerate(zip(sizes, rows_per_rank, strict=True))
    ]
    found = bucketize_keys(
        [keys.to(device) for keys in segments], num_owners, rows_per_rank, impl=impl, bounds=True
    )
    assert (found.keys.tolist(), found.counts.tolist()) == by_lists(segments, num_owners, rows_per_rank)


@pytest.mark.parametrize("num_owners", [1, 3, 600])
@pytest.mark.parametrize("impl", IMPLS)
def test_keys_without_an_owner_come_last(num_owners: int, impl: Impl, device: torch.device) -> None:
    rows_per_rank, fillers = [7, 50, 9], [1, 0, 1100]
    segments = [ascending(40, num_owners, num_rows, seed=num_rows) for num_rows in rows_per_rank]
    filled = [
        torch.cat([keys, torch.full((num,), num_owners * num_rows)]).to(device)
        for keys, num, num_rows in zip(segments, fillers, rows_per_rank, strict=True)
    ]
    found = bucketize_keys(filled, num_owners, rows_per_rank, impl=impl, bounds=True)
    keys, counts = by_lists(segments, num_owners, rows_per_rank)
    assert found.counts.tolist() == counts
    assert found.keys[: len(keys)].tolist() == keys
    assert found.keys.numel() == len(keys) + sum(fillers)


@pytest.mark.parametrize("impl", IMPLS)
def test_all_keys_of_the_last_owner_of_a_huge_space(impl: Impl, device: torch.device) -> None:
    rows_per_rank = 2**40
    keys = torch.full((65,), 3 * rows_per_rank - 1, device=device)
    found = bucketize_keys([keys, keys[:2]], 3, [rows_per_rank, rows_per_rank], impl=impl)
    assert torch.equal(found.keys, torch.cat([keys, keys[:2]]))
    assert found.counts.tolist() == [[0, 0], [0, 0], [65, 2]]


@pytest.mark.parametrize("num", [0, 1, 63, 1500])
@pytest.mark.parametrize("num_owners", [1, 2, 7])
@pytest.mark.parametrize("impl", IMPLS)
def test_owner_major(num: int, num_owners: int, impl: Impl, device: torch.device) -> None:
    keys = torch.arange(num, device=device) + 2**33
    rows_per_rank = 2**33 + num
    found = owner_major_keys(keys, num_owners, rows_per_rank, impl=impl)
    assert found.tolist() == [k % num_owners * rows_per_rank + k // num_owners for k in keys.tolist()]


def test_bad_input_is_named() -> None:
    good = torch.tensor([0, 3, 3, 9])
    for segments, error, message in (
        ([], ValueError, "at least one, got 0 and 1"),
        ([good, good], ValueError, "as many"),
        ([good.int()], TypeError, r"segments\[0\] must be an int64 vector"),
        ([good[::2]], ValueError, r"segments\[0\] must be contiguous"),
        ([good.flip(0)], ValueError, r"segments\[0\] must ascend"),
        ([good + 2], IndexError, r"segments\[0\] has 11, which is outside 0 to 10"),
    ):
        with pytest.raises(error, match=message):
            bucketize_keys(segments, 2, [5], bounds=True)
    with pytest.raises(ValueError, match="num_owners must be at least 1, got 0"):
        bucketize_keys([good], 0, [5])
    with pytest.raises(IndexError, match="keys has -1, which is outside 0 to 9"):
        owner_major_keys(good - 1, 2, 5, bounds=True)
    with pytest.raises(ValueError, match=r"segments\[0\] on cpu, segments\[1\] on meta"):
        bucketize_keys([good, good.to("meta")], 2, [5, 5])
