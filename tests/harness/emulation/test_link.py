"""The link's timeline, with join times made up."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from harness.emulation.link import FREE, Group, Link, LinkCost, Transfer

COST = LinkCost(bytes_per_ms=1000, latency_ms=7)


def transfer(
    link: Link, joined_s: float | None, busy_ms: float = 10, cost: LinkCost = COST, issued_s: float = 0.0
) -> Transfer:
    made = Transfer(int(busy_ms * 1000), cost, issued_s, lambda: joined_s)
    link.add(made)
    return made


def test_one_transfer_takes_its_bytes_and_then_the_latency() -> None:
    link = Link()
    only = transfer(link, 2.0)
    link.place(only, 2.5)
    assert (only.joined_s, only.start_s) == (2.0, 2.0)
    assert only.end_s == pytest.approx(2.010)
    assert only.due_s == pytest.approx(2.017)


def test_latency_occupies_nothing() -> None:
    link = Link()
    first, second = transfer(link, 1.0), transfer(link, 1.0)
    link.place(second, 1.0)
    assert second.start_s == first.end_s
    assert second.due_s == pytest.approx(1.0 + 2 * 0.010 + 0.007)


def test_a_transfer_whose_peers_are_late_takes_no_turn() -> None:
    link = Link()
    late, ready = transfer(link, None), transfer(link, 1.0)
    link.place(ready, 1.1)
    assert ready.end_s == pytest.approx(1.010)
    assert math.isnan(late.start_s)
    late.joined = lambda: 1.002
    link.place(late, 1.2)
    assert late.start_s == ready.end_s


def test_a_free_link_takes_no_time() -> None:
    link = Link()
    only = transfer(link, 3.0, cost=FREE)
    link.place(only, 3.1)
    assert only.due_s == 3.0


def test_lost_stamps_start_the_clock_when_the_real_collective_was_over() -> None:
    link = Link()
    only = transfer(link, None)
    link.place(only, 4.0)
    assert only.joined_s == only.start_s == 4.0


def test_a_failed_transfer_takes_no_turn() -> None:
    link = Link()
    failed, other = transfer(link, 1.0), transfer(link, 1.0)
    link.discard(failed)
    link.discard(failed)
    link.place(failed, 1.0)
    link.place(other, 1.0)
    assert math.isnan(failed.start_s)
    assert other.start_s == 1.0


def test_placing_twice_changes_nothing() -> None:
    link = Link()
    first = transfer(link, 1.0)
    link.place(first, 1.0)
    before = (first.start_s, first.end_s)
    link.place(first, 9.0)
    assert (first.start_s, first.end_s) == before


@pytest.mark.parametrize("seed", range(5))
def test_the_timeline_does_not_depend_on_who_waits_when(seed: int) -> None:
    generator = random.Random(seed)
    joined = [generator.choice([1.0, 1.005, 1.01, 1.2]) for _ in range(6)]
    busy = [generator.choice([0, 3, 10]) for _ in joined]
    expected, free_s = {}, 0.0
    for index in sorted(range(len(joined)), key=lambda i: (joined[i], i)):
        start = max(free_s, joined[index])
        free_s = start + busy[index] / 1e3
        expected[index] = (start, free_s)
    for order in itertools.permutations(range(len(joined))):
        link = Link()
        transfers = [transfer(link, when, ms) for when, ms in zip(joined, busy, strict=True)]
        for index in order:
            link.place(transfers[index], 2.0)
        for index, made in enumerate(transfers):
            assert (made.start_s, made.end_s) == pytest.approx(expected[index])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bytes_per_ms": 0.0}, r"bytes_per_ms must be above 0, got 0\.0; math\.inf makes transfers free"),
        ({"bytes_per_ms": math.nan}, "bytes_per_ms must be above 0, got nan"),
        ({"latency_ms": -1.0}, r"latency_ms must be at least 0 and finite, got -1\.0"),
        ({"latency_ms": math.inf}, "latency_ms must be at least 0 and finite, got inf"),
    ],
)
def test_impossible_costs_are_errors(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinkCost(**arguments)


@pytest.mark.parametrize(
    ("ranks", "world_size", "description", "kind"),
    [
        ((0, 1, 2, 3), 4, "default_pg", "world"),
        ((0,), 1, "undefined", "world"),
        ((0, 2), 4, "undefined", "sharding"),
        ((1, 4, 7), 9, "undefined", "sharding"),
        ((0, 1), 4, "undefined", "replica"),
        ((3, 4, 5), 9, "undefined", "replica"),
        ((0, 3), 4, "undefined", "other"),
        ((0, 1, 2), 4, "undefined", "other"),
        ((1,), 2, "undefined", "other"),
        # TorchRec's mesh knows better, except of a dimension that is the whole world.
        ((0, 1), 4, "mesh_shard", "sharding"),
        ((0, 2), 4, "mesh_replicate", "replica"),
        ((1,), 2, "mesh_shard", "sharding"),
        ((0, 1), 2, "mesh_shard", "world"),
        ((0, 1), 2, "mesh_replicate", "world"),
        ((1,), 2, "mesh_replicate", "replica"),
    ],
)
def test_kinds_of_groups(ranks: tuple[int, ...], world_size: int, description: str, kind: str) -> None:
    assert Group(ranks, world_size, description).kind == kind
