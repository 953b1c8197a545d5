"""A stand-in for an accelerator: streams that queue nothing but know what happens before what.

Operators run at once on the CPU, but count as work of the thread's current stream. The fake keeps a vector
clock a stream, event and piece of memory, and so finds every access that a real device could run before
one that it needs, however lucky the timing of a run was. It never forgets memory, so what is freed is not
taken for what was there before. The device is as late as it can be: an event has passed only once the
host has waited for it or for a later one. It can be broken: a real one reports an error of work that was
queued earlier from whatever call comes next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nestpipe import pipeline
from nestpipe.streams import DeviceStreams

Clock = dict[int, int]
READS_BY_HOST = ("_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "is_nonzero")
"""Operators whose result the host needs, or whose result's size."""


def _merge(into: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        into[stream] = max(into.get(stream, 0), tick)


@dataclass
class FakeEvent:
    """The clock of a stream when it was recorded."""

    device: FakeAccelerator
    clock: Clock = field(default_factory=dict)

    def record(self, stream: FakeStream) -> None:
        self.device.called("record")
        with self.device.lock:
            self.clock = dict(stream.clock)

    def query(self) -> bool:
        self.device.called("query")
        with self.device.lock:
            return all(self.device.host.get(stream, 0) >= tick for stream, tick in self.clock.items())

    def synchronize(self) -> None:
        self.device.called("synchronize")
        with self.device.lock:
            self.device.host_waits.append(threading.current_thread().name)
            _merge(self.device.host, self.clock)

    def elapsed_time(self, later: FakeEvent) -> float:
        """Milliseconds: one an operator."""
        self.device.called("elapsed_time")
        return float(sum(later.clock.values()) - sum(self.clock.values()))


@dataclass(eq=False)
class FakeStream:
    """Queued work, of which only the order is kept."""

    device: FakeAccelerator
    number: int
    clock: Clock = field(default_factory=dict)

    def __enter__(self) -> FakeStream:
        self.device.push(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.device.pop()

    def wait_event(self, event: FakeEvent) -> None:
        self.device.called("wait_event")
        with self.device.lock:
            _merge(self.clock, event.clock)


@dataclass(frozen=True)
class Access:
    """An operator that read or wrote some bytes."""

    name: str
    stream: int
    tick: int
    first: int
    end: int
    writes: bool


class FakeAccelerator:
    """See the module; `on_device`, `new_stream`, `current_stream`, `new_event` and `pinned` are
    `DeviceStreams`'s."""

    def __init__(self, index: int = 0) -> None:
        self.lock = threading.RLock()
        self.index = index
        self.broken: set[str] = set()
        """Names of the calls that raise from now on."""
        self.host: Clock = {}
        """What has surely run: the host has waited for it."""
        self.host_waits: list[str] = []
        """Threads that waited for an event."""
        self.host_reads: list[tuple[str, str]] = []
        """Thread and operator, where the host needed a value."""
        self.races: list[str] = []
        self.num_operators = 0
        self._accesses: dict[int, list[Access]] = {}
        self._kept: list[torch.Tensor] = []
        self._local = threading.local()
        self._num_streams = 0
        self._callers = self.new_stream()

    @property
    def current_index(self) -> int:
        """Of this thread's current device: the first one until it is set, as CUDA has it."""
        return getattr(self._local, "index", 0)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        before = self.current_index
        self._local.index = self.index
        try:
            yield
        finally:
            self._local.index = before

    def called(self, name: str) -> None:
        """Raise if the device is broken and a call of that name would tell."""
        if name in self.broken:
            raise RuntimeError(f"device-side assert, reported by {name}")

    def new_stream(self) -> FakeStream:
        self._num_streams += 1
        return FakeStream(self, self._num_streams)

    def current_stream(self) -> FakeStream:
        stack = getattr(self._local, "stack", [])
        return stack[-1][0] if stack else self._callers

    def new_event(self, timed: bool) -> FakeEvent:
        self.called("new_event")
        return FakeEvent(self)

    def pinned(self, batch: Any) -> Any:
        return batch

    def push(self, stream: FakeStream) -> None:
        mode = _Recorder(self)
        mode.__enter__()
        self._local.__dict__.setdefault("stack", []).append((stream, mode))

    def pop(self) -> None:
        _, mode = self._local.stack.pop()
        mode.__exit__(None, None, None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Count this thread's operators too: as work of the caller's stream."""
        with _Recorder(self):
            yield

    def record(self, function: Any, arguments: Any, results: Any) -> None:
        """Take note of one operator and look for accesses that it is in no order with."""
        name = str(function)
        if function._schema.name.partition("::")[2] in READS_BY_HOST:
            self.host_reads.append((threading.current_thread().name, name))
        written = [
            tensor
            for argument, value in zip(function._schema.arguments, arguments[0], strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value)
        ]
        written += [
            value
            for argument in function._schema.arguments
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and (value := arguments[1].get(argument.name)) is not None
        ]
        inputs = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        fresh = [tensor for tensor in outputs if tensor.untyped_storage().data_ptr() not in known]
        is_view = bool(outputs) and not fresh and not written
        with self.lock:
            self.num_operators += 1
            self._kept += outputs
            stream = self.current_stream()
            _merge(stream.clock, self.host)  # queued after the host knew that those had run
            stream.clock[stream.number] = stream.clock.get(stream.number, 0) + 1
            if not is_view:  # a view touches no memory
                for tensor in inputs:
                    self._access(name, stream, tensor, writes=any(tensor is other for other in written))
                for tensor in fresh:
                    self._access(name, stream, tensor, writes=True)

    def _access(self, name: str, stream: FakeStream, tensor: torch.Tensor, writes: bool) -> None:
        if tensor.numel() == 0 or tensor.device.type == "meta":
            return
        size = tensor.element_size()
        span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        first = int(tensor.storage_offset()) * size
        new = Access(
            name, stream.number, stream.clock[stream.number], first, first + int(span) * size, writes
        )
        kept = []
        for old in self._accesses.get(tensor.untyped_storage().data_ptr(), []):
            overlaps = old.first < new.end and new.first < old.end
            ordered = stream.clock.get(old.stream, 0) >= old.tick
            if overlaps and (old.writes or new.writes) and not ordered:
                self.races.append(f"{new} is not ordered after {old}")
            # Whatever is in order with the new access is then in order with the old one.
            covered = new.first <= old.first and old.end <= new.end and ordered
            if not (covered and (new.writes or (not old.writes and old.stream == new.stream))):
                kept.append(old)
        self._accesses[tensor.untyped_storage().data_ptr()] = [*kept, new]


class _Recorder(TorchDispatchMode):
    def __init__(self, device: FakeAccelerator) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        self._device.record(function, (args, kwargs or {}), results)
        return results


class Pageable(DeviceStreams):
    """Streams of a fake: there is no memory to pin where there is no accelerator, and none to record."""

    def keep_until_read(self, batch: Any) -> None: ...


def stand_in(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    """An accelerator that pipelines built meanwhile work on, with tensors of the CPU."""
    device = FakeAccelerator()
    monkeypatch.setattr(pipeline, "streams_of", lambda _: Pageable(device))
    empty, zeros = torch.empty, torch.zeros
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k))
    return device
