"""What a worker's fabric has under way, and the log of what is through."""

from __future__ import annotations

import threading
from collections import deque

from harness.emulation.work import FabricWork, OpRecord

MAX_RECORDS = 250_000
"""Beyond this the oldest records go: a log that nobody takes must not grow for ever."""


class Ledger:
    """Collectives under way and finished, of all groups of a worker; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[FabricWork, None] = {}
        self._records: deque[OpRecord] = deque(maxlen=MAX_RECORDS)

    def begin(self, work: FabricWork) -> None:
        """A collective was issued; it is kept alive until it ends."""
        with self._lock:
            self._under_way[work] = None

    def end(self, work: FabricWork, record: OpRecord) -> None:
        """A collective is through."""
        with self._lock:
            self._under_way.pop(work, None)
            self._records.append(record)

    def drop(self, work: FabricWork) -> None:
        """A collective has failed."""
        with self._lock:
            self._under_way.pop(work, None)

    def under_way(self) -> list[FabricWork]:
        """Collectives that nobody has seen the end of, in issue order."""
        with self._lock:
            return list(self._under_way)

    def take(self) -> list[OpRecord]:
        """Records since the last call, in the order in which collectives were seen to end."""
        for work in self.under_way():
            work.is_completed()  # nobody may have waited for it
        with self._lock:
            taken, self._records = self._records, deque(maxlen=MAX_RECORDS)
        return list(taken)
