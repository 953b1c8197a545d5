"""The caller's batches: drawn ahead on the host lane, and handed back if they are never trained."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class BatchStream:
    """Draws batches from an iterator, first those that an earlier stream handed back."""

    def __init__(self, batches: Iterator[Any], handed_back: Iterable[Any] = ()) -> None:
        self.source = batches
        self._queue = deque(handed_back)
        self._exhausted = False
        self._stopped = False

    def take(self) -> Any | None:
        """The next batch; None once the iterator has ended or the stream was stopped."""
        if self._stopped:
            return None
        if self._queue:
            return self._queue.popleft()
        if self._exhausted:
            return None  # an iterator that has ended is not asked again: some would start over
        try:
            return next(self.source)
        except StopIteration:
            self._exhausted = True
            return None

    def switch(self, batches: Iterator[Any]) -> None:
        """Go on with another iterator; what was drawn from the old one is still trained."""
        self.source = batches
        self._exhausted = False

    def stop(self) -> None:
        """Draw no more: the workers have agreed to stop."""
        self._stopped = True

    def unread(self) -> list[Any]:
        """Batches that were handed back and not drawn again."""
        return list(self._queue)
