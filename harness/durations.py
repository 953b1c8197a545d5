"""Durations as a person reads them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them, such as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
