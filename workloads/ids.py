"""Sets of ids gathered from a stream: memory grows with the number of distinct ids, not with the stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

_LEAST_TO_MERGE = 1 << 20


class IdCounts:
    """The distinct ids of a stream, ascending, and how often each came.

    About 50 bytes a distinct id at the most: what came is merged once there is as much of it as is known.
    """

    def __init__(self, dtype: Any = np.int64) -> None:
        self._ids = [np.zeros(0, dtype)]
        self._counts = [np.zeros(0, np.int64)]
        self._num_pending = 0

    def add(self, ids: NDArray[Any]) -> None:
        """Count ids [n], in any order."""
        codes, distinct = pd.factorize(ids, sort=True)
        self._ids.append(np.asarray(distinct))
        self._counts.append(np.bincount(codes, minlength=len(distinct)))
        self._num_pending += len(distinct)
        if self._num_pending > max(_LEAST_TO_MERGE, len(self._ids[0])):
            self._merge()

    def result(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Ids [n], ascending, and their counts [n]."""
        self._merge()
        return self._ids[0], self._counts[0]

    def _merge(self) -> None:
        ids, counts = np.concatenate(self._ids), np.concatenate(self._counts)
        # The parts are sorted, and a stable sort takes sorted runs as they are.
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        firsts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))) if len(ids) else order
        self._ids = [ids[firsts]]
        self._counts = [np.add.reduceat(counts[order], firsts) if len(ids) else counts]
        self._num_pending = 0


class TextIds:
    """Codes of text ids, from 0 in the order in which they first came."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def codes(self, ids: pa.Array) -> NDArray[np.int64]:
        """The code of each of the ids [n]."""
        encoded = ids.dictionary_encode()
        # A Python loop over the distinct ids of a block, not over its rows.
        codes = [self._codes.setdefault(name, len(self._codes)) for name in encoded.dictionary.to_pylist()]
        return np.array(codes, dtype=np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]

    def names(self) -> NDArray[np.bytes_]:
        """The id of each code, as UTF-8 bytes of one width: [n]."""
        return np.array([name.encode() for name in self._codes], dtype=np.bytes_)
