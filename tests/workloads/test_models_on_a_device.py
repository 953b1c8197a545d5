"""Every model under the engine on a fake accelerator: no host read on the compute lane, the CPU's numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nestpipe import NestPipe, RowWiseAdagrad, pipeline, schedules
from nestpipe.kernels.padding import Padding
from nestpipe.streams import CpuStreams, DeviceStreams, TorchAccelerator
from tests.nestpipe.fake_accelerator import FakeAccelerator
from tests.nestpipe.training import weights
from tests.workloads.batches import select
from tests.workloads.sequence_models import MODELS
from tests.workloads.test_micro_batches import models
from workloads.interface import SequenceBatch

SAMPLES = ((0, 1, 2, 3, 4, 5), (5, 3), (4, 2, 0, 1), (2, 4, 0, 5, 1))
"""Of each step's batch. Three micro-batches of two samples: one is empty."""
WAITS = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
INDEXES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class Pinning(DeviceStreams):
    """Streams of a fake, for batches that go the way into pinned memory."""

    def pinned(self, batch: Any) -> Any:
        return TorchAccelerator(torch.device("cpu")).pinned(batch)

    def keep_until_read(self, batch: Any) -> None: ...


def _pageable(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *a, pin_memory=False, **k: original(*a, **k)


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines work on a fake accelerator; memory that should be pinned is any."""
    monkeypatch.setattr(pipeline, "streams_of", lambda _: Pinning(FakeAccelerator()))
    monkeypatch.setattr(torch, "empty", _pageable(torch.empty))
    monkeypatch.setattr(torch, "zeros", _pageable(torch.zeros))
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)


class _Waits(TorchDispatchMode):
    """Operators of this thread for whose result, or its size, a host would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if _waits(function, args, options):
            self.found.append(str(function))
        return function(*args, **options)


def _waits(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    name = function._schema.name
    if name in INDEXES:
        indices = [leaf for leaf in tree_leaves(args[1]) if isinstance(leaf, torch.Tensor)]
        return any(index.dtype in (torch.bool, torch.uint8) for index in indices)
    if name == "aten::repeat_interleave":
        return options.get("output_size") is None
    return name in WAITS


@contextmanager
def host_reads() -> Iterator[list[str]]:
    """What this thread does meanwhile that would wait for a device."""
    own = threading.get_ident()
    with pytest.MonkeyPatch.context() as patch, _Waits() as waits:
        for name in ("tolist", "numpy", "cpu"):  # which no dispatch mode sees
            patch.setattr(torch.Tensor, name, _noted(name, own, waits.found))
        yield waits.found


def _noted(name: str, own: int, found: list[str]) -> Callable[..., Any]:
    original = getattr(torch.Tensor, name)

    def noting(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == own:
            found.append(name)
        return original(tensor, *args, **options)

    return noting


X = torch.tensor([2, 0, 1])


@pytest.mark.parametrize(
    "read",
    [
        lambda: torch.equal(X, X),
        lambda: int(X.max()),
        lambda: bool((X > 0).all()),
        lambda: X[X > 0],
        lambda: X.clone().index_put_((X > 0,), X[:1]),
        lambda: X.nonzero(),
        lambda: X.unique(),
        lambda: X.masked_select(X > 0),
        lambda: torch.repeat_interleave(X),
        lambda: torch.repeat_interleave(X, X),
        lambda: X.tolist(),
        lambda: X.cpu(),
    ],
)
def test_a_host_read_is_seen(read: Callable[[], Any]) -> None:
    """The detector's own test."""
    with host_reads() as reads:
        torch.repeat_interleave(X, output_size=3)[X].masked_fill(X > 0, 0)
        assert reads == []
        read()
        assert reads


def _build(name: str) -> NestPipe:
    model, _ = models()[name]
    return NestPipe(
        model.to(torch.float64),
        sparse_optimizer=RowWiseAdagrad(lr=0.05),
        # Adam reads its count of steps, which is on the host.
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        schedule=schedules.nestpipe(3),
    )


def _batches(name: str) -> Iterator[SequenceBatch]:
    _, batch = models()[name]
    return (select(batch, list(samples)) for samples in SAMPLES)


@pytest.mark.parametrize("name", [*MODELS, "dlrm"])
def test_the_compute_lane_reads_nothing(name: str) -> None:
    batches = _batches(name)
    with _build(name) as trained, host_reads() as reads:
        for _ in SAMPLES:
            trained.progress(batches)
            assert reads == []


def _trained(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    batches = _batches(name)
    with _build(name) as trained:
        losses = [trained.progress(batches)[0].item() for _ in SAMPLES]
        return losses, weights(trained.state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_of_any_length_train_as_on_a_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a longest sample of its own, which the model is told on a device and reads on a CPU."""
    told: list[tuple[int | None, int]] = []
    original = Padding.of

    def noting(lengths: torch.Tensor, num_tokens: int, longest: int | None = None) -> Padding:
        told.append((longest, int(lengths.max())))
        return original(lengths, num_tokens, longest)

    monkeypatch.setattr(Padding, "of", noting)
    losses, state = _trained(name)
    assert all(longest == actual for longest, actual in told)
    assert len({longest for longest, _ in told}) > 3
    told.clear()
    monkeypatch.setattr(pipeline, "streams_of", lambda _: CpuStreams())
    expected_losses, expected_state = _trained(name)
    assert {longest for longest, _ in told} == {None}
    assert losses == expected_losses
    assert all(torch.equal(state[key], expected_state[key]) for key in expected_state)
