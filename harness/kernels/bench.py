"""Time of each op and implementation, and its share of the bandwidth that a plain copy reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Literal

import torch

from harness.kernels.cases import LEAST_BYTES, Size, build_case
from nestpipe.kernels.dispatch import why_not

BenchImpl = Literal["reference", "triton", "fbgemm"]
NUM_WARM_UP_CALLS = 3
COPY_BYTES = LEAST_BYTES
COPY_BYTES_CPU = 1 << 26
_CHUNK = 1 << 24
"""Elements that are compared at once."""
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Of the largest difference between two implementations, relative to the largest value."""


@dataclass(frozen=True)
class KernelTiming:
    """One op by one implementation; times are of one call."""

    op: str
    impl: BenchImpl
    device: str
    dtype: str
    num_rows: int
    num_ids: int
    dim: int
    num_bytes: int
    """That a call moves at the least; 0 where computing bounds the op."""
    times_ms: tuple[float, ...]
    copy_gb_s: float
    """Bytes read and written a second by a copy of as much memory on the same device."""
    is_correct: bool
    """Whether the result is the plain version's, up to rounding."""
    speedup: float | None
    """Over the plain version; None for a wrong result."""

    @property
    def ms(self) -> float:
        return median(self.times_ms)

    @property
    def gb_s(self) -> float:
        return self.num_bytes / self.ms / 1e6

    @property
    def share(self) -> float:
        """Of the copy's bandwidth."""
        return self.gb_s / self.copy_gb_s


def measure(ops: Iterable[tuple[str, Size]], device: torch.device, num_calls: int) -> Iterator[KernelTiming]:
    """Each op at its size by the plain version, Triton where it runs on `device`, FBGEMM where it has it."""
    with _one_thread():
        copy_gb_s = copy_bandwidth_gb_s(device, num_calls)
        for op, size in ops:
            yield from _measure_op(op, size, device, num_calls, copy_gb_s)


def _measure_op(
    op: str, size: Size, device: torch.device, num_calls: int, copy_gb_s: float
) -> Iterator[KernelTiming]:
    expected: torch.Tensor | None = None
    plain_ms = 0.0
    impls: list[BenchImpl] = ["reference"] if why_not(device) else ["reference", "triton"]
    for impl in (*impls, "fbgemm"):
        measured = _measure_impl(op, impl, size, device, num_calls)
        if measured is None:
            continue
        found, times_ms, num_bytes = measured
        is_correct = expected is None or _agree(found, expected)
        if expected is None:
            expected, plain_ms = found, median(times_ms)
        yield KernelTiming(
            op=op,
            impl=impl,
            device=str(device),
            dtype=str(size.dtype).removeprefix("torch."),
            num_rows=size.num_rows,
            num_ids=size.num_ids,
            dim=size.dim,
            num_bytes=num_bytes,
            times_ms=times_ms,
            copy_gb_s=copy_gb_s,
            is_correct=is_correct,
            speedup=plain_ms / median(times_ms) if is_correct else None,
        )


def _measure_impl(
    op: str, impl: BenchImpl, size: Size, device: torch.device, num_calls: int
) -> tuple[torch.Tensor, tuple[float, ...], int] | None:
    """Result, times and bytes of a call; None where the implementation has no such op.

    The case is built anew, as some ops change their inputs, and its memory is free again afterwards.
    """
    case = build_case(op, size, device)
    call = case.fbgemm if impl == "fbgemm" else partial(case.call, impl)
    if call is None:
        return None
    found = call().detach().clone()
    return found, time_ms(call, device, num_calls), case.num_bytes


def copy_bandwidth_gb_s(device: torch.device, num_calls: int) -> float:
    """Gigabytes read and written a second by a copy within the device, of more than its caches hold."""
    num_bytes = COPY_BYTES_CPU if device.type == "cpu" else COPY_BYTES
    source = torch.zeros(num_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times_ms = time_ms(lambda: target.copy_(source), device, num_calls)
    return 2 * source.numel() / median(times_ms) / 1e6


def time_ms(call: Callable[[], object], device: torch.device, num_calls: int) -> tuple[float, ...]:
    """Milliseconds of each of `num_calls` calls, after some that warm up; by the device's own clock."""
    for _ in range(NUM_WARM_UP_CALLS):
        call()
    if device.type == "cpu":
        return tuple(_host_ms(call) for _ in range(num_calls))
    events = [(_event(device), _event(device)) for _ in range(num_calls)]
    stream = torch.accelerator.current_stream(device)
    for begin, end in events:
        begin.record(stream)
        call()
        end.record(stream)
    torch.accelerator.synchronize(device)
    return tuple(begin.elapsed_time(end) for begin, end in events)


def _host_ms(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return 1e3 * (perf_counter() - began)


def _event(device: torch.device) -> torch.Event:
    return torch.Event(device, enable_timing=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """As a worker of a run computes on a CPU."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    if not expected.numel():
        return True
    pairs = list(zip(found.flatten().split(_CHUNK), expected.flatten().split(_CHUNK), strict=True))
    # By torch, whose maximum of anything with a NaN is NaN.
    largest = float(torch.stack([other.abs().max() for _, other in pairs]).max())
    differences = [(part.double() - other.double()).abs().max() for part, other in pairs]
    difference = float(torch.stack(differences).max())
    allowed = TOLERANCE.get(expected.dtype, 0.0)  # keys are exact
    return difference <= allowed * largest
