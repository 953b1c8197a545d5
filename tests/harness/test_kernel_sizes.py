"""What `nestpipe kernels bench` moves and times: enough memory on an accelerator, and the op alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.kernels import bench, cases
from harness.kernels.cases import OPS, Size, build_case, size_for

CPU, META = torch.device("cpu"), torch.device("meta")


class Shapes(cases._Source):
    """Inputs without memory, as an accelerator would be given them."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self._size = size
        self.device = META

    def rows(self, num_rows: int, dim: int | None = None) -> torch.Tensor:
        shape = (num_rows, self._size.dim if dim is None else dim)
        return torch.empty(shape, dtype=self._size.dtype, device=META)

    def host_rows(self, num_rows: int) -> torch.Tensor:
        return self.rows(num_rows)

    def ids(self, num_ids: int, below: int) -> torch.Tensor:
        return torch.empty(num_ids, dtype=torch.int64, device=META)

    def unique_ids(self, num_ids: int, below: int) -> torch.Tensor:
        return self.ids(min(num_ids, below), below)


@pytest.mark.parametrize(("dim", "dtype"), [(128, torch.float32), (64, torch.bfloat16)])
@pytest.mark.parametrize("op", [op for op in OPS if op != "hstu_attention"])
def test_an_accelerator_moves_a_gib_a_call(
    op: str, dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_Source", Shapes)
    case = build_case(op, size_for(op, META, dim, dtype), META)
    assert case.num_bytes >= 1 << 30
    assert bench.COPY_BYTES >= 1 << 30


def test_what_the_user_gives_counts_on_every_device() -> None:
    for device in (CPU, META):
        assert size_for("gather", device, 8, torch.float32, 30, 20) == Size(30, 20, 8, torch.float32)
    assert size_for("gather", CPU, 8, torch.float32) == Size(50_000, 20_000, 8, torch.float32)


def test_scatter_add_is_timed_without_the_sort_and_without_zeroing(monkeypatch: pytest.MonkeyPatch) -> None:
    given, ahead = [], object()
    scatter_add_rows = cases.scatter_add_rows

    def recorded(*tensors: Any, sorted_positions: Any = None, **named: Any) -> torch.Tensor:
        given.append(sorted_positions)
        return scatter_add_rows(*tensors, **named)

    monkeypatch.setattr(cases, "sort_positions", lambda positions, num_rows: ahead)
    monkeypatch.setattr(cases, "scatter_add_rows", recorded)
    case = build_case("scatter_add", Size(70, 63, 12, torch.float32), CPU)
    first = case.call("reference").clone()
    assert first.any()
    torch.testing.assert_close(case.call("reference"), 2 * first)
    assert given == [ahead, ahead]


def test_results_are_compared_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_CHUNK", 4)
    expected = torch.arange(12.0).view(3, 4)
    assert bench._agree(expected.clone(), expected)
    for wrong in (float("nan"), 12.0):
        for place in (0, 11):
            found = expected.clone()
            found.view(-1)[place] = wrong
            assert not bench._agree(found, expected)
    assert bench._agree(torch.zeros(0, 4), torch.zeros(0, 4))
    assert not bench._agree(torch.zeros(1, 4), torch.zeros(2, 4))
