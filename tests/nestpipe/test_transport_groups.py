"""The process groups of the lanes: of which backends, and with which options."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nestpipe import transport
from nestpipe.transport import Kind, Transport, connect, new_lane_group, wait, zero_sm_options
from tests.distributed import run_workers

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GLOO, NCCL, BOTH = ("gloo", [CPU, CUDA]), ("nccl", [CUDA]), ("cpu:gloo,cuda:nccl", [CPU, CUDA])
"""A group's backend, as it was asked for, and the kinds of device that it has one for."""

Own = tuple[str, list[torch.device]]


def _groups(kind: Kind, replicas: int, own: Own) -> list[tuple[Any, ...]]:
    """What is asked of torch for a world of four with a backend of its `own`, as rank 1 sees it."""
    of_world, present = own
    asked: list[tuple[Any, ...]] = []
    world = SimpleNamespace(_device_types=present)

    def new_group(
        ranks: list[int], timeout: timedelta | None, backend: str | None, pg_options: Any
    ) -> SimpleNamespace:
        asked.append((tuple(ranks), timeout, backend, pg_options))
        return SimpleNamespace(_device_types=present)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "new_group", new_group)
        patch.setattr(dist, "get_world_size", lambda group: 4)
        patch.setattr(dist, "get_rank", lambda group: 1)
        patch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2, 3])
        patch.setattr(dist, "get_backend", lambda group: of_world)
        patch.setattr(transport, "_timeout_of", lambda group: timedelta(seconds=7))
        connect(world, replicas, kind)  # type: ignore[arg-type]
    return asked


@pytest.mark.parametrize(
    ("device", "own"),
    [
        (CPU, GLOO),
        (CPU, ("fabric", [CPU])),
        (CUDA, BOTH),
        (CUDA, ("cpu:gloo,cuda:gloo", [CPU, CUDA])),
        (CUDA, ("ucc", [CPU, CUDA])),
    ],
)
def test_groups_are_the_parents_own_where_it_has_all_backends(device: torch.device, own: Own) -> None:
    assert _groups(Kind(device), 1, own) == [((0, 1, 2, 3), timedelta(seconds=7), own[0], None)] * 3


@pytest.mark.parametrize("own", [GLOO, NCCL, ("fabric", [CPU])])
def test_a_lane_has_a_backend_for_host_and_device(own: Own) -> None:
    asked = _groups(Kind(CUDA, timedelta(seconds=3)), 2, own)
    assert {(timeout, backend) for _, timeout, backend, _ in asked} == {
        (timedelta(seconds=3), "cpu:gloo,cuda:nccl")
    }
    # Every rank makes the groups of all parts in one order: of keys, agreement, comm, dense, ...
    sharding, everyone, same_rows = [(0, 2), (1, 3)], [(0, 1, 2, 3)], [(0, 1), (2, 3)]
    expected = [*sharding, *everyone, *sharding, *everyone, *everyone, *sharding, *same_rows]
    assert [ranks for ranks, *_ in asked] == expected


def test_a_pipeline_on_the_host_needs_one_backend() -> None:
    assert {backend for _, _, backend, _ in _groups(Kind(CPU), 1, NCCL)} == {"cpu:gloo"}


def _backends_of_lanes(rank: int, num_workers: int) -> tuple[set[str], list[str], float]:
    world = dist.group.WORLD
    assert world is not None
    parents = [world, dist.new_group(backend="cpu:gloo")]
    groups = [new_lane_group(parent, Kind(CPU)) for parent in parents]
    total = torch.tensor(float(rank))
    wait(Transport(groups[1]).all_reduce(total))
    return {of.type for of in world._device_types}, [dist.get_backend(g) for g in groups], total.item()


def test_a_lane_has_the_backend_of_its_parent_and_not_of_the_world() -> None:
    """As torch really has it; plain gloo counts as a backend for CUDA too, also where there is none."""
    assert run_workers(_backends_of_lanes, 2) == [({"cpu", "cuda"}, ["gloo", "cpu:gloo"], 1.0)] * 2


def test_zero_sm_is_asked_of_nccl_and_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(), raising=False)
    with pytest.raises(ValueError, match="zero_sm=True needs NCCL 2.28 or later"):  # noqa: RUF043
        zero_sm_options()
    nccl = SimpleNamespace(
        NCCL_CTA_POLICY_ZERO=2, Options=lambda: SimpleNamespace(config=SimpleNamespace(cta_policy=0))
    )
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)
    options = [options for *_, options in _groups(Kind(CUDA, zero_sm=True), 1, BOTH)]
    assert [one.config.cta_policy for one in options] == [2, 2, 2]
    assert len({id(one) for one in options}) == 3  # torch writes the group's name into them
