"""Streams: where the device work of a lane is queued, and how lanes wait for each other's.

On an accelerator a handler only queues work and returns. Each lane queues on a stream of its own, and
transfers under way finish on one more; the compute lane is the caller's thread and so uses the caller's
current stream: the model, its autograd and the caller's own work need no further order. The current device
is a thread's own and the first one to begin with, so every section sets the pipeline's. An op that waits
for others makes its stream wait for their marks, which are events, while the host goes on. A CPU works
while the host waits: there are no streams and no marks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, Protocol

import torch

from nestpipe.schedule import Lane

Place = Lane | Literal["transfers"]
"""A lane, or where transfers finish that a lane has issued."""


class Mark(Protocol):
    """A point in the queue of a stream."""

    def has_passed(self) -> bool:
        """Whether everything queued before it is done; does not wait."""
        ...

    def wait(self) -> None:
        """Block this thread until then."""
        ...


class Streams(Protocol):
    """What the executor and the stages ask of a device."""

    is_asynchronous: bool
    """Whether work is queued, so that reading a value on the host waits for all work before it."""

    def section(self, place: Place, after: Iterable[Mark | None]) -> AbstractContextManager[None]:
        """Entered to queue work at `place`, behind the marks of what it waits for."""
        ...

    def mark(self, timed: bool = False) -> Mark | None:
        """Mark what this thread has queued in the section so far; None where it is done already."""
        ...

    def seconds(self, mark: Mark) -> float:
        """When a timed mark passed, in seconds of `time.perf_counter`."""
        ...

    def follow_caller(self) -> None:
        """Make every lane wait for what the caller's thread has queued: after work beside the lanes."""
        ...

    def pinned(self, batch: Any) -> Any:
        """`batch` in host memory that is copied to the device without the host waiting."""
        ...

    def keep_until_read(self, batch: Any) -> None:
        """Its memory is not used again before the work of this section, also after the last reference."""
        ...


class CpuStreams:
    """No streams: what a handler does is done when it returns."""

    is_asynchronous = False

    def section(self, place: Place, after: Iterable[Mark | None]) -> AbstractContextManager[None]:
        return _NOTHING

    def mark(self, timed: bool = False) -> Mark | None:
        return None

    def seconds(self, mark: Mark) -> float:
        raise AssertionError("a CPU has no marks")

    def follow_caller(self) -> None: ...

    def pinned(self, batch: Any) -> Any:
        return batch

    def keep_until_read(self, batch: Any) -> None: ...


_NOTHING: AbstractContextManager[None] = nullcontext()


class Accelerator(Protocol):
    """Of a kind of device what `DeviceStreams` needs, in the terms of `torch.Stream` and `torch.Event`."""

    def on_device(self) -> AbstractContextManager[None]:
        """Entered to make the device this thread's current one."""
        ...

    def new_stream(self) -> Any: ...

    def current_stream(self) -> Any: ...

    def new_event(self, timed: bool) -> Any: ...

    def pinned(self, batch: Any) -> Any: ...


class TorchAccelerator:
    """A device of any kind that `torch.accelerator` knows."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def on_device(self) -> AbstractContextManager[None]:
        return torch.accelerator.device_index(self._device.index)

    def new_stream(self) -> torch.Stream:
        return torch.Stream(self._device)

    def current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self._device)

    def new_event(self, timed: bool) -> torch.Event:
        return torch.Event(self._device, enable_timing=timed)

    def pinned(self, batch: Any) -> Any:
        return batch.pin_memory() if hasattr(batch, "pin_memory") else batch


@dataclass(frozen=True)
class DeviceMark:
    """An event, and the stream that it is queued on."""

    event: Any
    stream: Any

    def has_passed(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()


class DeviceStreams:
    """A stream a lane on an accelerator; the compute lane's is the caller's current one."""

    is_asynchronous = True

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        places: list[Place] = [lane for lane in Lane if lane is not Lane.COMPUTE]
        self._streams = {place: accelerator.new_stream() for place in (*places, "transfers")}
        self._origin: tuple[DeviceMark, float] | None = None

    @contextmanager
    def section(self, place: Place, after: Iterable[Mark | None]) -> Iterator[None]:
        own = self._streams.get(place)
        with self._accelerator.on_device(), nullcontext() if own is None else own:
            stream = self._accelerator.current_stream()
            for mark in after:
                assert mark is None or isinstance(mark, DeviceMark)
                if mark is not None and mark.stream != stream:
                    stream.wait_event(mark.event)
            yield

    def mark(self, timed: bool = False) -> DeviceMark:
        stream = self._accelerator.current_stream()
        if timed and self._origin is None:
            self._origin = self._now(stream)
        return self._record(stream, timed)

    def seconds(self, mark: Mark) -> float:
        assert self._origin is not None
        assert isinstance(mark, DeviceMark)
        origin, origin_s = self._origin
        return origin_s + 1e-3 * float(origin.event.elapsed_time(mark.event))

    def follow_caller(self) -> None:
        mark = self._record(self._accelerator.current_stream(), timed=False)
        for stream in self._streams.values():
            stream.wait_event(mark.event)

    def pinned(self, batch: Any) -> Any:
        return self._accelerator.pinned(batch)

    def keep_until_read(self, batch: Any) -> None:
        if hasattr(batch, "record_stream"):
            batch.record_stream(self._accelerator.current_stream())

    def _record(self, stream: Any, timed: bool) -> DeviceMark:
        event = self._accelerator.new_event(timed)
        event.record(stream)
        return DeviceMark(event, stream)

    def _now(self, stream: Any) -> tuple[DeviceMark, float]:
        """A mark that has passed, and when; the one time that the host waits for a trace to begin."""
        mark = self._record(stream, timed=True)
        mark.wait()
        return mark, perf_counter()


def streams_of(device: torch.device) -> Streams:
    """The streams of a pipeline on `device`.

    Raises ValueError for an accelerator that is not there, and for one that is not this thread's current
    one: the caller's own work, and Triton's launches, would go to another.
    """
    if device.type == "cpu":
        return CpuStreams()
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if present is None or present.type != device.type:
        found = "no accelerator" if present is None else f"an accelerator of type {present.type}"
        raise ValueError(f'device="{device}" is not there: torch {torch.__version__} sees {found}')
    current = torch.accelerator.current_device_index()
    if device.index is not None and device.index != current:
        raise ValueError(
            f'device="{device}" is not the current device, which is "{device.type}:{current}"; call '
            f"torch.accelerator.set_device_index({device.index}) before building the pipeline"
        )
    return DeviceStreams(TorchAccelerator(device))


def indexed(device: torch.device) -> torch.device:
    """`device` with the index of the current one where it has none, as tensors on it say."""
    if device.type == "cpu" or device.index is not None or not torch.accelerator.is_available():
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())
