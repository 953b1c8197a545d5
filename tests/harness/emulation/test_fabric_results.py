"""What collectives of the fabric deliver and charge, and how they fail: against plain gloo."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.emulation.fabric import BACKEND
from harness.emulation.link import Group, LinkCost
from tests.distributed import run_workers
from tests.harness.emulation.workers import fabric

Collective = Callable[[dist.ProcessGroup], Any]


def some(*shape: int, salt: int = 0) -> torch.Tensor:
    """Values that depend on the rank."""
    generator = torch.Generator().manual_seed(100 * dist.get_rank() + salt)
    return torch.randn(*shape, generator=generator)


def _all_to_all(group: dist.ProcessGroup) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = [(rank + 2 * peer) % 3 for peer in range(size)]
    received = [(peer + 2 * rank) % 3 for peer in range(size)]
    output = torch.full((sum(received), 5), torch.nan)
    dist.all_to_all_single(output, some(sum(sent), 5), received, sent, group=group, async_op=True).wait()
    return output


def _all_to_all_even(group: dist.ProcessGroup) -> torch.Tensor:
    output = torch.empty(dist.get_world_size(), 63)
    dist.all_to_all_single(output, some(dist.get_world_size(), 63), group=group)
    return output


def _all_to_all_nothing(group: dist.ProcessGroup) -> torch.Tensor:
    output, nothing = torch.empty(0, 3), [0] * dist.get_world_size()
    dist.all_to_all_single(output, torch.empty(0, 3), nothing, nothing, group=group)
    return output


def _all_reduce(group: dist.ProcessGroup) -> list[torch.Tensor]:
    tensors = [some(7), some(1).double(), some(3).long()]
    for tensor in tensors:
        dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()
    dist.all_reduce(tensors[0], dist.ReduceOp.MAX, group=group)
    return tensors


def _all_reduce_coalesced(group: dist.ProcessGroup) -> list[torch.Tensor]:
    tensors = [some(4), some(2, 3)]
    group.allreduce_coalesced(tensors).wait()
    return tensors


def _all_gather(group: dist.ProcessGroup) -> list[torch.Tensor]:
    gathered = [torch.empty(6) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, some(6), group=group)
    whole = torch.empty(dist.get_world_size() * 4)
    dist.all_gather_single(whole, some(4), group=group)
    return [*gathered, whole]


def _reduce_scatter(group: dist.ProcessGroup) -> list[torch.Tensor]:
    size = dist.get_world_size()
    share, other = torch.empty(3), torch.empty(5)
    dist.reduce_scatter(share, [some(3, salt=peer) for peer in range(size)], group=group)
    dist.reduce_scatter_single(other, some(5 * size), group=group)
    return [share, other]


def _broadcast(group: dist.ProcessGroup) -> torch.Tensor:
    tensor = some(9)
    dist.broadcast(tensor, src=dist.get_world_size() - 1, group=group)
    return tensor


def _reduce(group: dist.ProcessGroup) -> torch.Tensor | None:
    tensor = some(9)
    dist.reduce(tensor, dst=0, group=group)
    return tensor if dist.get_rank() == 0 else None


def _gather(group: dist.ProcessGroup) -> list[torch.Tensor] | None:
    root = dist.get_world_size() - 1
    gathered = [torch.empty(2, 2) for _ in range(root + 1)] if dist.get_rank() == root else None
    dist.gather(some(2, 2), gathered, dst=root, group=group)
    return gathered


def _scatter(group: dist.ProcessGroup) -> torch.Tensor:
    output = torch.empty(3)
    parts = [some(3, salt=peer) for peer in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.scatter(output, parts, src=0, group=group)
    return output


def _objects(group: dist.ProcessGroup) -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank}, group=group)
    sent = [("from", rank), None]
    dist.broadcast_object_list(sent, src=0, group=group)
    received: list[Any] = [None]
    dist.scatter_object_list(received, list(range(size)) if rank == 0 else None, src=0, group=group)
    dist.barrier(group)
    return [gathered, sent, received]


COLLECTIVES: list[Collective] = [
    _all_to_all,
    _all_to_all_even,
    _all_to_all_nothing,
    _all_reduce,
    _all_reduce_coalesced,
    _all_gather,
    _reduce_scatter,
    _broadcast,
    _reduce,
    _gather,
    _scatter,
    _objects,
]


def _compare(rank: int, num_workers: int, latency_ms: float) -> dict[str, tuple[Any, Any]]:
    with fabric(lambda group: LinkCost(1e3, latency_ms)):
        plain, modelled = dist.new_group(backend="gloo"), dist.group.WORLD
        assert modelled is not None
        return {collective.__name__: (collective(modelled), collective(plain)) for collective in COLLECTIVES}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_results_are_those_of_gloo(num_workers: int) -> None:
    for results in run_workers(_compare, num_workers, 0.1):
        for name, (modelled, plain) in results.items():
            assert same(modelled, plain), name


def _charges(rank: int, num_workers: int) -> list[tuple[str, int, bool]]:
    with fabric() as made:
        group = dist.group.WORLD
        assert group is not None
        for collective in COLLECTIVES:
            if collective is not _objects:
                collective(group)
        dist.barrier()
        return [(record.kind, record.num_bytes, record.is_float) for record in made.take_log()]


def test_what_is_charged() -> None:
    for rank, log in enumerate(run_workers(_charges, 2)):
        sent_rows = [[0, 2], [1, 0]][rank]
        assert log == [
            ("all_to_all", 4 * 5 * sum(sent_rows), True),
            ("all_to_all", 4 * 63 * 2, True),
            ("all_to_all", 0, True),
            ("all_reduce", 2 * 4 * 7, True),
            ("all_reduce", 2 * 8, True),
            ("all_reduce", 2 * 8 * 3, False),
            ("all_reduce", 2 * 4 * 7, True),
            ("all_reduce", 2 * 4 * (4 + 6), True),
            ("all_gather", 2 * 4 * 6, True),
            ("all_gather", 2 * 4 * 4, True),
            ("reduce_scatter", 2 * 4 * 3, True),
            ("reduce_scatter", 2 * 4 * 5, True),
            ("broadcast", 4 * 9, True),
            ("reduce", 4 * 9, True),
            ("gather", 4 * 4, True),
            ("scatter", 2 * 4 * 3 if rank == 0 else 0, rank == 0),
            ("barrier", 0, False),
        ]


def _gradients(rank: int, num_workers: int, backend: str) -> list[torch.Tensor]:
    def costs(group: Group) -> LinkCost:
        return LinkCost(1e4, 0.5)

    with fabric(costs) if backend == BACKEND else nullcontext():
        torch.manual_seed(3)  # the replica outlives its group, which must not hang
        model = nn.Sequential(nn.Linear(63, 40), nn.SiLU(), nn.Linear(40, 5))
        # Small buckets: several futures under way at once.
        replica = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
        for step in range(3):
            replica(some(17, 63, salt=step)).square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_gradients_under_ddp_are_bitwise_those_of_gloo(num_workers: int) -> None:
    expected = run_workers(_gradients, num_workers, "gloo")
    assert len(expected[0]) == 4
    for modelled, plain in zip(run_workers(_gradients, num_workers, BACKEND), expected, strict=True):
        assert same(modelled, plain)


def _many(rank: int, num_workers: int) -> tuple[float, int]:
    with fabric(lambda group: LinkCost(1e3, 2.0)) as made:
        groups = [dist.new_group() for _ in range(2)]
        total = torch.tensor(float(rank))
        works = [dist.all_reduce(total, group=groups[0], async_op=True)]
        output = torch.empty(num_workers)
        works.append(
            dist.all_to_all_single(
                output, torch.arange(num_workers) + 100.0 * rank, group=groups[1], async_op=True
            )
        )
        for work in works:
            work.wait()
        assert output.tolist() == [100.0 * peer + rank for peer in range(num_workers)]
        return total.item(), len({record.joined_s for record in made.take_log()})


def test_sixteen_workers() -> None:
    assert run_workers(_many, 16, timeout_s=100) == [(120.0, 2)] * 16


def _absent(rank: int, num_workers: int, absent: tuple[int, ...]) -> str:
    with fabric():
        lanes = dist.new_group(group_desc="rows", timeout=timedelta(seconds=1))
        side = dist.new_group(backend="gloo", timeout=timedelta(seconds=30))
        message = ""
        if rank not in absent:
            try:
                dist.all_reduce(torch.zeros(5), group=lanes)
            except RuntimeError as error:
                message = str(error)
        dist.barrier(side)
        return message


def test_a_timeout_names_the_missing_ranks() -> None:
    messages = run_workers(_absent, 4, (1, 3))
    for rank in (0, 2):
        assert "all_reduce number 1 (40 bytes) of group" in messages[rank]
        assert f"(rows, ranks (0, 1, 2, 3)) failed on rank {rank} after" in messages[rank]
        assert "not joined: rank 1, 3: " in messages[rank]


def _patience(rank: int, num_workers: int) -> tuple[str, float]:
    with fabric() as made:
        total = torch.ones(1)
        side = dist.new_group(backend="gloo")
        message = ""
        if rank == 0:
            work = dist.all_reduce(total, async_op=True)
            try:
                work.wait(timedelta(milliseconds=20))
            except RuntimeError as error:
                message = str(error)
            dist.barrier(side)
            work.wait()
        else:
            dist.barrier(side)
            dist.all_reduce(total)
        assert len(made.take_log()) == 1
        return message, total.item()


def test_an_impatient_wait_says_who_is_missing_and_can_be_repeated() -> None:
    (message, first), (_, second) = run_workers(_patience, 2)
    assert "not joined: rank 1: " in message
    assert first == second == 2.0


def _gone(rank: int, num_workers: int, with_future: bool) -> str:
    store = dist.distributed_c10d._get_default_store()
    with fabric() as made:
        group = dist.new_group(group_desc="rows")
        if rank == 1:
            dist.destroy_process_group(group)
            del group, made._gloos[-1]
            gc.collect()
            store.wait(["seen"])
            return ""
        work = dist.all_reduce(torch.zeros(5), group=group, async_op=True)
        try:
            work.get_future().wait() if with_future else work.wait()
        except RuntimeError as error:
            return str(error)
        finally:
            store.set("seen", "")
            assert made.take_log() == []
    raise AssertionError("the collective did not fail")


@pytest.mark.parametrize("with_future", [False, True])
def test_a_peer_that_is_gone_is_named_at_once(with_future: bool) -> None:
    message = run_workers(_gone, 2, with_future)[0]
    assert "(rows, ranks (0, 1)) failed on rank 0 after 0." in message
    assert "not joined: rank 1: " in message
    assert "closed by peer" in message or "reset by peer" in message
