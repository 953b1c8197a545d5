"""When collectives of the fabric are through: real processes, against the model's arithmetic."""

from __future__ import annotations

import threading
from time import perf_counter

import pytest
import torch
import torch.distributed as dist

from harness.emulation.link import Group, LinkCost
from harness.emulation.work import OpRecord
from tests.distributed import run_workers
from tests.harness.emulation.workers import fabric

pytestmark = pytest.mark.timed

NUM_BYTES = 2_000_000
BYTES_PER_MS = 25_000.0
BUSY_S = NUM_BYTES / BYTES_PER_MS / 1e3
LATENCY_S = 0.010
CLOSE_S = 0.005


def costs(group: Group) -> LinkCost:
    return LinkCost(BYTES_PER_MS, LATENCY_S * 1e3)


def exchange(group: dist.ProcessGroup | None = None) -> dist.Work:
    payload = torch.zeros(NUM_BYTES // 4)
    return dist.all_to_all_single(torch.empty_like(payload), payload, group=group, async_op=True)


def _one_at_a_time(rank: int, num_workers: int, num_times: int) -> tuple[list[float], list[OpRecord]]:
    with fabric(costs) as made:
        waited_s = []
        for _ in range(num_times):
            dist.barrier()
            begin_s = perf_counter()
            exchange().wait()
            waited_s.append(perf_counter() - begin_s)
        return waited_s, [record for record in made.take_log() if record.kind == "all_to_all"]


def test_a_transfer_takes_its_modelled_time_and_gloo_adds_nothing() -> None:
    results = run_workers(_one_at_a_time, 2, 5)
    for waited_s, records in results:
        assert len(records) == 5
        for record in records:
            assert record.num_bytes == NUM_BYTES
            assert record.end_s - record.start_s == pytest.approx(BUSY_S)
            assert record.done_s >= record.end_s + LATENCY_S
        # A busy machine wakes a sleeper late, never early: the best of a few is the fabric's own.
        assert min(waited_s) < BUSY_S + LATENCY_S + CLOSE_S
    for mine, theirs in zip(results[0][1], results[1][1], strict=True):
        assert mine.joined_s == theirs.joined_s == max(mine.issued_s, theirs.issued_s)


def _late(rank: int, num_workers: int) -> list[OpRecord]:
    with fabric(costs) as made:
        side = dist.new_group(backend="gloo")
        if rank == 0:
            work = exchange()
            dist.barrier(side)
        else:
            dist.barrier(side)
            work = exchange()
        work.wait()
        return made.take_log()


def test_the_clock_starts_when_the_last_peer_has_joined() -> None:
    first, last = ([record] for (record,) in run_workers(_late, 2))
    assert first[0].issued_s < last[0].issued_s
    for record in (first[0], last[0]):
        assert record.joined_s == record.start_s == last[0].issued_s


def _back_to_back(rank: int, num_workers: int, num_groups: int) -> tuple[float, list[OpRecord]]:
    with fabric(costs) as made:
        groups = [dist.new_group() for _ in range(num_groups)]
        best_s = float("inf")
        for _ in range(4):
            made.take_log()
            dist.barrier()
            works = [exchange(group) for group in groups for _ in range(2 // num_groups)]
            for work in works:
                work.wait()
            records = [record for record in made.take_log() if record.kind == "all_to_all"]
            best_s = min(best_s, records[-1].done_s - records[0].joined_s)
        return best_s, records


@pytest.mark.parametrize("num_groups", [1, 2])
def test_transfers_share_one_link_and_latency_does_not_occupy_it(num_groups: int) -> None:
    for best_s, (first, second) in run_workers(_back_to_back, 2, num_groups):
        assert second.start_s == first.end_s
        assert 2 * BUSY_S + LATENCY_S <= best_s < 2 * BUSY_S + LATENCY_S + CLOSE_S


def _slow_group(rank: int, num_workers: int, with_future: bool) -> list[OpRecord]:
    with fabric(costs) as made:
        slow, quick = dist.new_group(group_desc="slow"), dist.new_group(group_desc="quick")
        side = dist.new_group(backend="gloo")
        works = [exchange(slow)] if rank == 0 else []
        futures = [work.get_future() for work in works if with_future]
        exchange(quick).get_future().wait() if with_future else exchange(quick).wait()
        dist.barrier(side)  # rank 1 joins the slow group once rank 0 has left the quick one
        for pending in futures or works or [exchange(slow)]:
            pending.wait()
        return made.take_log()


@pytest.mark.parametrize("with_future", [False, True])
def test_a_slow_group_does_not_hold_up_another(with_future: bool) -> None:
    for quick, slow in run_workers(_slow_group, 2, with_future):
        assert (quick.group.description, slow.group.description) == ("quick", "slow")
        assert quick.done_s < slow.joined_s
        assert slow.start_s == slow.joined_s


def _completion(rank: int, num_workers: int) -> tuple[bool, bool, float, float]:
    with fabric(costs) as made:
        work = exchange()
        dist.barrier(dist.new_group(backend="gloo"))
        at_once = work.is_completed()
        work.get_future().wait()
        future_s = perf_counter()
        record = made.take_log()[0]
        return at_once, work.is_completed() and work.is_success(), future_s, record.end_s + LATENCY_S


def test_completion_can_be_polled_and_comes_as_a_future() -> None:
    for at_once, in_the_end, future_s, due_s in run_workers(_completion, 2):
        assert not at_once
        assert in_the_end
        assert future_s >= due_s


def _unwaited(rank: int, num_workers: int) -> tuple[list[str], list[OpRecord]]:
    before = set(threading.enumerate())
    with fabric() as made:
        dist.all_reduce(torch.zeros(3), async_op=True).get_future().wait()
        made.set_costs(costs)
        exchange()  # nobody waits for this one before the fabric is closed
        made.close()
        records = made.take_log()
    return [thread.name for thread in set(threading.enumerate()) - before], records


def test_close_waits_for_what_is_under_way_and_leaves_no_thread() -> None:
    for threads, (reduced, exchanged) in run_workers(_unwaited, 2):
        assert threads == []
        assert reduced.end_s == reduced.start_s
        assert exchanged.done_s >= exchanged.start_s + BUSY_S + LATENCY_S


def _costs_change(rank: int, num_workers: int) -> list[OpRecord]:
    with fabric() as made:
        exchange().wait()
        made.set_costs(costs)
        dear = exchange()
        made.set_costs(lambda group: LinkCost())
        dear.wait()
        exchange().wait()
        return made.take_log()


def test_costs_change_for_what_is_issued_from_then_on() -> None:
    for records in run_workers(_costs_change, 2):
        assert [record.end_s - record.start_s for record in records] == pytest.approx([0, BUSY_S, 0])


def _by_kind(rank: int, num_workers: int) -> dict[str, set[str]]:
    with fabric() as made:
        dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        groups = [
            dist.new_group([0, 2]),
            dist.new_group([1, 3]),
            dist.new_group([0, 1]),
            dist.new_group([2, 3]),
        ]
        made.take_log()
        for group in [dist.group.WORLD, *groups]:
            if dist.get_rank(group) >= 0:
                dist.all_reduce(torch.zeros(1), group=group)
        seen: dict[str, set[str]] = {}
        for record in made.take_log():
            seen.setdefault(record.group.kind, set()).add(str(record.group.ranks))
        return seen


def test_costs_know_the_kind_of_a_group() -> None:
    for rank, seen in enumerate(run_workers(_by_kind, 4)):
        assert seen == {
            "world": {"(0, 1, 2, 3)"},
            "sharding": {"(0, 2)" if rank % 2 == 0 else "(1, 3)"},
            "replica": {"(0, 1)" if rank < 2 else "(2, 3)"},
        }
