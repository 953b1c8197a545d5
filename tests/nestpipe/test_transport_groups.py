"""The process groups of the lanes: of which backends, and with which options."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nestpipe import transport
from nestpipe.transport import Kind, connect, zero_sm_options

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def _groups(kind: Kind, replicas: int, present: list[torch.device]) -> list[tuple[Any, ...]]:
    """What is asked of torch for a world of four, as rank 1 sees it."""
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
        patch.setattr(dist, "get_default_backend_for_device", lambda device: "nccl")
        patch.setattr(transport, "_timeout_of", lambda group: timedelta(seconds=7))
        connect(world, replicas, kind)  # type: ignore[arg-type]
    return asked


def test_groups_are_the_parents_own_where_it_has_all_backends() -> None:
    everyone, usual = (0, 1, 2, 3), timedelta(seconds=7)
    assert _groups(Kind(CPU), 1, [CPU]) == [(everyone, usual, None, None)] * 3
    assert _groups(Kind(CUDA), 1, [CPU, CUDA]) == [(everyone, usual, None, None)] * 3


@pytest.mark.parametrize("present", [[CPU], [CUDA]])
def test_a_lane_has_a_backend_for_host_and_device(present: list[torch.device]) -> None:
    asked = _groups(Kind(CUDA, timedelta(seconds=3)), 2, present)
    assert {(timeout, backend) for _, timeout, backend, _ in asked} == {
        (timedelta(seconds=3), "cpu:gloo,cuda:nccl")
    }
    # Every rank makes the groups of all parts in one order: of keys, agreement, comm, dense, ...
    sharding, everyone, same_rows = [(0, 2), (1, 3)], [(0, 1, 2, 3)], [(0, 1), (2, 3)]
    expected = [*sharding, *everyone, *sharding, *everyone, *everyone, *sharding, *same_rows]
    assert [ranks for ranks, *_ in asked] == expected


def test_zero_sm_is_asked_of_nccl_and_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(), raising=False)
    with pytest.raises(ValueError, match="zero_sm=True needs NCCL 2.28 or later"):  # noqa: RUF043
        zero_sm_options()
    nccl = SimpleNamespace(
        NCCL_CTA_POLICY_ZERO=2, Options=lambda: SimpleNamespace(config=SimpleNamespace(cta_policy=0))
    )
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)
    options = [options for *_, options in _groups(Kind(CUDA, zero_sm=True), 1, [CPU, CUDA])]
    assert [one.config.cta_policy for one in options] == [2, 2, 2]
    assert len({id(one) for one in options}) == 3  # torch writes the group's name into them
