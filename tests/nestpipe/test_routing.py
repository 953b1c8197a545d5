"""Who owns which row, what is asked of whom, and the buffers' intersection."""

from __future__ import annotations

import pytest
import torch

from nestpipe.buffers import RowBuffer, shared_positions
from nestpipe.layout import Table
from nestpipe.loading import owned_rows
from nestpipe.optim import Adam
from nestpipe.routing import Flag, Router, RowSpace, UniqueFinder
from nestpipe.transport import Transport, default_group
from tests.distributed import run_workers


@pytest.mark.parametrize(("num_rows", "num_ranks"), [(1, 1), (7, 2), (10, 3), (5, 8), (64, 4)])
def test_owner_major_keys_are_distinct_and_balanced(num_rows: int, num_ranks: int) -> None:
    space = RowSpace(4, torch.float32, num_rows, num_ranks)
    keys = space.owner_major(torch.arange(num_rows))
    assert keys.unique().numel() == num_rows
    owners = keys // space.rows_per_rank
    assert torch.equal(owners, torch.arange(num_rows) % num_ranks)


@pytest.mark.parametrize("first_row", [0, 1, 5])
@pytest.mark.parametrize("num_rows", [1, 2, 9])
def test_owned_rows_agree_with_the_keys(first_row: int, num_rows: int) -> None:
    num_ranks = 4
    space = RowSpace(4, torch.float32, first_row + num_rows, num_ranks)
    table = Table("t", "m", "m.embeddings.t.weight", 0, first_row, num_rows, None)
    keys = space.owner_major(torch.arange(num_rows) + first_row)
    for rank in range(num_ranks):
        owned = owned_rows(table, num_ranks, rank)
        mine = keys // space.rows_per_rank == rank
        assert torch.equal(torch.arange(num_rows)[owned.ids], mine.nonzero().view(-1))
        assert torch.equal(
            torch.arange(space.rows_per_rank)[owned.local], keys[mine] - rank * space.rows_per_rank
        )


@pytest.mark.parametrize("key_space", [10, 10**6])
@pytest.mark.parametrize("num_keys", [0, 1, 63, 500])
def test_unique_finder(key_space: int, num_keys: int) -> None:
    finder = UniqueFinder(key_space)
    for _ in range(2):  # the scratch map must come out clean
        keys = torch.randint(0, key_space, (num_keys,))
        unique, inverse = finder(keys)
        expected, expected_inverse = torch.unique(keys, return_inverse=True)
        assert torch.equal(unique, expected)
        assert torch.equal(inverse, expected_inverse)


def _keys(rank: int, space: int, micro_batch: int, num_rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + 10 * space + micro_batch)
    count = 0 if (rank, micro_batch) == (1, 0) else 9
    return torch.randint(0, num_rows, (count,), generator=generator)


def _route(rank: int, num_workers: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """What each id gets if every owner sends `row * 10` (key space 0) or `row * 10 + 1` (1)."""
    spaces = [RowSpace(1, torch.float32, 17, num_workers), RowSpace(1, torch.float32, 5, num_workers)]
    transport = Transport(default_group())
    keys = [
        [s.owner_major(_keys(rank, index, m, s.num_rows)) for m in range(3)] for index, s in enumerate(spaces)
    ]
    routed = Router(spaces, transport).route(keys, 3, Flag.BATCH)
    results = []
    for index, route in enumerate(routed.spaces):
        assert torch.equal(route.owner_rows, route.owner_rows.unique())
        global_rows = route.owner_rows * num_workers + rank
        pairs = []
        for m, part in enumerate(route.micro_batches):
            sent = global_rows.index_select(0, part.positions)
            received = torch.empty(part.num_requested, dtype=torch.int64)
            work = transport.all_to_all(received, sent, part.request_splits, part.serve_splits)
            if work is not None:
                work.wait()
            pairs.append(
                (received.index_select(0, part.inverse), _keys(rank, index, m, spaces[index].num_rows))
            )
        results.append(pairs)
    return results


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_every_id_gets_its_own_row(num_workers: int) -> None:
    for result in run_workers(_route, num_workers):
        for pairs in result:
            for got, asked in pairs:
                assert torch.equal(got, asked)


def test_shared_positions() -> None:
    active, prefetch = torch.tensor([1, 4, 6, 9]), torch.tensor([0, 4, 5, 9, 12])
    theirs, mine = shared_positions(active, prefetch)
    assert active[theirs].tolist() == [4, 9]
    assert prefetch[mine].tolist() == [4, 9]
    for empty in (shared_positions(active[:0], prefetch), shared_positions(active, prefetch[:0])):
        assert empty[0].numel() == empty[1].numel() == 0


def test_buffers_copy_rows_with_their_state() -> None:
    space, device = RowSpace(3, torch.float32, 50, 1), torch.device("cpu")
    active, prefetch = (RowBuffer(space, Adam(lr=0.1), device) for _ in range(2))
    active.resize(torch.tensor([1, 4, 6]))
    prefetch.resize(torch.tensor([4, 5]))
    for buffer, value in ((active, 1.0), (prefetch, 2.0)):
        buffer.rows.fill_(value)
        for tensor in buffer.state.values():
            tensor.fill_(value)
    prefetch.copy_shared_rows(active, shared_positions(active.keys, prefetch.keys))
    for tensor in (prefetch.rows, *prefetch.state.values()):
        assert tensor[:, 0].tolist() == [1.0, 2.0]
    assert prefetch.gradients.shape == (2, 3)
    assert not prefetch.gradients.any()
