"""Modelled time: real work counts inside it, and what is left is slept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


def sleep_until(deadline: float) -> None:
    """Return at `deadline` (seconds of `perf_counter`), at once if it has passed."""
    left = deadline - time.perf_counter()
    if left > 0:
        time.sleep(left)


@contextmanager
def lasting(duration_ms: float) -> Iterator[None]:
    """A block that takes at least `duration_ms`."""
    deadline = time.perf_counter() + duration_ms / 1e3
    yield
    sleep_until(deadline)
