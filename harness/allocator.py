"""The C allocator of a worker, set alike for every method."""

from __future__ import annotations

import ctypes

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD_BYTES = 32 << 20
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Let freed blocks stay with the process, where the C library is glibc; whether it took.

    By default blocks of a few megabytes, such as the rows of a batch, go back to the kernel when they are
    freed and come again as zeroed pages: at two workers on two cores that was a quarter of a
    lookup-bound step, whatever the method, and most of its noise.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)) and kept
