"""The sharded full ranking against a ranking of every user by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed import run_workers
from tests.workloads.batches import histories_of
from workloads.evaluation.leave_one_out import LeaveOneOut
from workloads.evaluation.metrics import ranking_metrics
from workloads.evaluation.ranking import Chunks, evaluate_ranking
from workloads.histories import Histories
from workloads.interface import EvaluationResult, SequenceBatch

NUM_ITEMS = 101
DIM = 5
LENGTHS = [1, 2, 3, 70, 8, 1, 13, NUM_ITEMS, 4, 4, 21, 2, 34]
FULL = LENGTHS.index(NUM_ITEMS)
REPEATED = 4
Result = tuple[SequenceBatch, torch.Tensor, torch.Tensor]


def histories() -> Histories:
    """One user has seen every item but the target, another the target as well, two have one item."""
    drawn = histories_of(LENGTHS, NUM_ITEMS, seed=2)
    items = drawn.items.copy()
    items[drawn.offsets[FULL] : drawn.offsets[FULL + 1]] = np.random.default_rng(3).permutation(NUM_ITEMS)
    items[drawn.offsets[REPEATED]] = items[drawn.offsets[REPEATED + 1] - 1]
    return dataclasses.replace(drawn, items=items)


def rows_and_states(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the items, of which many are equal, one is zero and some differ in length alone; states."""
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(NUM_ITEMS, DIM, generator=generator, dtype=dtype)
    rows[60:90] = rows[10:40]
    rows[90:] = rows[10] * 4
    rows[7] = 0.0
    return rows, torch.randn(len(LENGTHS), DIM, generator=generator, dtype=dtype)


def by_hand(
    histories: Histories, rows: NDArray[np.float64], states: NDArray[np.float64]
) -> dict[int, tuple[int, list[int]]]:
    """Rank and the 50 best of every user with two items or more; scores within 1e-8 are a tie."""
    expected = {}
    for user in range(histories.num_users):
        history = histories.items[histories.offsets[user] : histories.offsets[user + 1]].tolist()
        if len(history) < 2:
            continue
        target = history.pop()
        offered = [item for item in range(histories.num_items) if item == target or item not in history]
        scores: dict[int, float] = {}
        for item in offered:
            norm = np.linalg.norm(rows[item]) * np.linalg.norm(states[user])
            scores[item] = float(rows[item] @ states[user] / norm) if norm else 0.0
        values = sorted(scores.values())
        assert not any(1e-12 < high - low < 1e-8 for low, high in itertools.pairwise(values))
        ordered = sorted(offered, key=lambda item: (-round(scores[item], 9), item))
        expected[user] = ordered.index(target) + 1, (ordered + [-1] * 50)[:50]
    return expected


def results_of(users: NDArray[np.int64], states: torch.Tensor, batch_size: int) -> Iterator[Result]:
    for part in torch.from_numpy(users).split(batch_size):
        if len(part):
            keys = KeyedJaggedTensor(keys=["item"], values=part, lengths=torch.ones_like(part))
            yield SequenceBatch(keys, None, part, part), torch.zeros(()), states[part] * 3


def ranked(
    rank: int, num_workers: int, group: dist.ProcessGroup | None, chunks: Chunks, dtype: torch.dtype
) -> EvaluationResult:
    """Uneven shares: of three workers the last has no users and the second no items."""
    split = LeaveOneOut(histories())
    rows, states = rows_and_states(dtype)
    sharing_users, sharing_items = ([0, 1], [0, 2]) if num_workers == 3 else (range(num_workers),) * 2
    users = split.evaluated_users()
    own_users, own_items = users[:0], torch.arange(0)
    if rank in sharing_users:
        own_users = users[sharing_users.index(rank) :: len(sharing_users)]
    if rank in sharing_items:
        own_items = torch.arange(NUM_ITEMS)[sharing_items.index(rank) :: len(sharing_items)].flip(0)

    def rows_of(table: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        assert table == "item"
        for ids in own_items.split(30):
            yield ids, rows[ids]

    return evaluate_ranking(results_of(own_users, states, 4), rows_of, group, split, chunks)


CHUNKS = (
    Chunks(),
    Chunks(users=4, block_users=3, block_rows=16),
    Chunks(seen_items=200, block_rows=60),
)
DTYPES = (torch.float32, torch.float64)


def ranked_in_all_ways(rank: int, num_workers: int) -> list[EvaluationResult]:
    group = dist.new_group(backend="gloo") if num_workers > 1 else None
    return [
        ranked(rank, num_workers, group, chunks, dtype) for dtype, chunks in itertools.product(DTYPES, CHUNKS)
    ]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_equals_ranking_by_hand(num_workers: int):
    first, *others = (
        run_workers(ranked_in_all_ways, num_workers) if num_workers > 1 else [ranked_in_all_ways(0, 1)]
    )
    for dtype, place in zip(DTYPES, range(0, len(first), len(CHUNKS)), strict=True):
        rows, states = rows_and_states(dtype)
        expected = by_hand(histories(), rows.double().numpy(), states.double().numpy())
        assert expected[FULL][1][1:] == [-1] * 49
        for result in first[place : place + len(CHUNKS)]:
            assert result.sample_ids is not None
            assert result.ranks is not None
            assert result.top_items is not None
            assert result.sample_ids.tolist() == sorted(expected)
            assert result.ranks.tolist() == [expected[user][0] for user in sorted(expected)]
            assert result.top_items.tolist() == [expected[user][1] for user in sorted(expected)]
            assert result.metrics == ranking_metrics(result.ranks)
    for other in others:
        assert [result.metrics for result in other] == [result.metrics for result in first]
        assert all((r.sample_ids, r.ranks, r.top_items) == (None, None, None) for r in other)


def test_some_target_ties_with_items_on_both_sides():
    """Else the test above would not notice which way ties go."""
    split = LeaveOneOut(histories())
    rows, _ = rows_and_states(torch.float32)
    users = split.evaluated_users()
    sides = set()
    for user, target in zip(users, split.targets(users).tolist(), strict=True):
        seen = set(split.seen(users[users == user])[1].tolist())
        equal = {item for item in range(NUM_ITEMS) if torch.equal(rows[item], rows[target])}
        sides |= {item < target for item in equal - seen - {target}}
    assert sides == {True, False}


def failing(rank: int, num_workers: int, what: str) -> str:
    split = LeaveOneOut(histories())
    rows, states = rows_and_states(torch.float32)
    users = split.evaluated_users()
    own = torch.arange(NUM_ITEMS)[rank::num_workers]
    if rank == num_workers - 1:
        if what == "state":
            states = states / 0.0
        elif what == "row":
            rows[own[3]] = float("nan")
        elif what == "twice":
            held_out = split.targets(users)[0]
            own = torch.where(own == held_out, (own + 1) % NUM_ITEMS, own)
        else:
            own = own[:-1]
    group = dist.new_group(backend="gloo") if num_workers > 1 else None
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller looks at the message
        evaluate_ranking(
            results_of(users[rank::num_workers], states, 4),
            lambda table: iter([(own, rows[own])]),
            group,
            split,
        )
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("state", "users' states are not finite: the training has diverged"),
        ("row", "1 of 101 items' rows are not finite"),
        ("twice", "gave the rows of 1 of 11 held-out items not exactly once"),
        ("less", "gave 100 rows of 101 items"),
    ],
)
def test_names_what_is_wrong(what: str, expected: str):
    assert expected in failing(0, 1, what)


def test_every_worker_is_told():
    first, second = run_workers(failing, 2, "state")
    assert first == second
    assert "5 of 11 users' states" in first


def test_nobody_to_evaluate():
    split = LeaveOneOut(histories_of([1, 1], 3))
    with pytest.raises(ValueError, match="users with at least two items"):
        evaluate_ranking(iter([]), lambda table: iter([]), None, split)
