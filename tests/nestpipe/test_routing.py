"""Who owns which row, what is asked of whom, and the buffers' intersection."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from nestpipe import schedules, stages
from nestpipe.bounds import check_routed
from nestpipe.buffers import RowBuffer
from nestpipe.layout import Table
from nestpipe.loading import owned_rows
from nestpipe.optim import Adam
from nestpipe.routing import Flag, Routed, Router, RowSpace, SpaceRoute
from nestpipe.transport import Transport, default_group
from nestpipe.unique import (
    Shared,
    UniqueFinder,
    shared_positions,
    shared_positions_on_device,
    unique_on_device,
)
from tests.distributed import run_workers
from tests.nestpipe.models import Data
from tests.nestpipe.training import build, step_until_stop


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
def test_unique_keys(key_space: int, num_keys: int) -> None:
    finder = UniqueFinder(key_space)
    for _ in range(2):  # the scratch map must come out clean
        keys = torch.randint(0, key_space, (num_keys,))
        found = finder(keys)
        expected, expected_inverse = torch.unique(keys, return_inverse=True)
        assert torch.equal(found.keys, expected)
        assert torch.equal(found.inverse, expected_inverse)
        assert found.num is None
        unread = unique_on_device(keys, key_space)
        assert unread.num is not None
        assert unread.num.item() == expected.numel()
        fillers = torch.full((num_keys - expected.numel(),), key_space)
        assert torch.equal(unread.keys, torch.cat([expected, fillers]))
        assert torch.equal(unread.inverse, expected_inverse)


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


def _routes_both_ways(rank: int, num_workers: int, late_sizes: bool) -> list[tuple[Routed, Routed]]:
    """What a host's router and a device's find for the same batches, each with rows of the one before."""
    spaces = [RowSpace(1, torch.float32, 17, num_workers), RowSpace(1, torch.float32, 5, num_workers)]
    routers = [Router(spaces, Transport(default_group()), asynchronous=a) for a in (False, True)]
    found: list[tuple[Routed, Routed]] = []
    for batch in range(3):
        keys = [
            [s.owner_major(_keys(rank, 5 * batch + index, m, s.num_rows)) for m in range(2)]
            for index, s in enumerate(spaces)
        ]
        before = found[-1] if found else (None, None)
        plain, unread = (
            router.route(keys, 2, Flag.BATCH, of_router, late_sizes)
            for router, of_router in zip(routers, before, strict=True)
        )
        assert plain.sizes is None
        assert (unread.sizes is None) != late_sizes
        found.append((plain, unread))
    after_the_last = routers[1].route([], 2, Flag.END, found[-1][1], late_sizes)
    assert (after_the_last.flags, after_the_last.spaces) == ([Flag.END] * num_workers, [])
    assert all(unread.sizes is None for _, unread in found)
    return found


@pytest.mark.parametrize("late_sizes", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_device_routes_as_the_host_does(num_workers: int, late_sizes: bool) -> None:
    for result in run_workers(_routes_both_ways, num_workers, late_sizes):
        for plain, unread in result:
            assert len(plain.shared) == len(unread.shared)
            for one, other in zip(plain.shared, unread.shared, strict=True):
                assert _read(one) == _read(other)
            for of_host, of_device in zip(plain.spaces, unread.spaces, strict=True):
                assert torch.equal(of_host.owner_rows, of_device.owner_rows)
                for one, other in zip(of_host.micro_batches, of_device.micro_batches, strict=True):
                    assert torch.equal(one.inverse, other.inverse)
                    assert torch.equal(one.positions, other.positions)
                    assert one.request_splits == other.request_splits
                    assert one.serve_splits == other.serve_splits
        assert all(plain.shared for plain, _ in result[1:])


def _routed() -> tuple[list[RowSpace], Routed, Routed]:
    spaces = [RowSpace(1, torch.float32, 17, 1)]
    router = Router(spaces, Transport(None), asynchronous=True)
    before = Routed(spaces=[SpaceRoute(torch.tensor([0, 3, 9]), [])])
    return spaces, router.route([[torch.tensor([3, 3, 8]), torch.tensor([9])]], 2, Flag.BATCH, before), before


def test_what_is_inside_passes_the_check_of_bounds() -> None:
    check_routed(*_routed())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.spaces[0].owner_rows.add_(9), "row space 0: owner_rows has 18, .* outside 0 to 16"),
        (lambda r: r.spaces[0].micro_batches[0].inverse.sub_(1), "micro-batch 0: inverse has -1, .* 0 to 1"),
        (
            lambda r: r.spaces[0].micro_batches[1].positions.add_(5),
            "micro-batch 1: positions has 7, .* 0 to 2",
        ),
        (lambda r: r.spaces[0].micro_batches[1].serve_splits.append(1), "1 positions, .* ask for .1, 1."),
        (lambda r: r.shared[0].active.add_(2), "shared active has 4, .* outside 0 to 2"),
        (lambda r: r.shared[0].prefetch.sub_(1), "shared prefetch has -1, .* outside 0 to 2"),
    ],
)
def test_an_index_outside_is_named(change: Callable[[Routed], object], message: str) -> None:
    spaces, routed, before = _routed()
    change(routed)
    with pytest.raises((IndexError, ValueError), match=message):
        check_routed(spaces, routed, before)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_every_id_gets_its_own_row(num_workers: int) -> None:
    for result in run_workers(_route, num_workers):
        for pairs in result:
            for got, asked in pairs:
                assert torch.equal(got, asked)


def _read(found: Shared) -> tuple[list[int], list[int]]:
    if found.num is not None:
        found = found.cut(int(found.num))
    return found.active.tolist(), found.prefetch.tolist()


@pytest.mark.parametrize("find", [shared_positions, shared_positions_on_device])
def test_shared_positions(find: Callable[[torch.Tensor, torch.Tensor], Shared]) -> None:
    active, prefetch = torch.tensor([1, 4, 6, 9]), torch.tensor([0, 4, 5, 9, 12])
    assert _read(find(active, prefetch)) == ([1, 3], [1, 3])
    assert _read(find(active, active)) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert _read(find(active[:2], torch.tensor([4, 50, 50, 50]))) == ([1], [0])
    assert _read(find(active, torch.tensor([10, 11]))) == ([], [])
    for empty in (find(active[:0], prefetch), find(active, prefetch[:0])):
        assert _read(empty) == ([], [])


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


@pytest.mark.parametrize("check_bounds", [True, False])
def test_a_pipeline_checks_bounds_where_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, check_bounds: bool
) -> None:
    checked: list[int] = []

    def check(spaces: list[RowSpace], routed: Routed, before: Routed | None) -> None:
        check_routed(spaces, routed, before)
        checked.append(len(routed.spaces))

    monkeypatch.setattr(stages, "check_routed", check)
    data = Data()
    with build(data, schedules.nestpipe(2), Adam(lr=0.1), check_bounds=check_bounds) as pipeline:
        step_until_stop(pipeline, data.batches(0, 1, 3))
    assert len(checked) == (3 if check_bounds else 0)
