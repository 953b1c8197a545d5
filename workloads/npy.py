"""Arrays written to .npy files piece by piece, so that no array has to fit in memory."""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_HEADER_BYTES = 128


class NpyWriter:
    """A .npy file that grows along its first dimension; its length is written when it is closed."""

    def __init__(self, path: Path, dtype: DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self.num_rows = 0
        self._file = path.open("wb")
        self._file.write(bytes(_HEADER_BYTES))

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows [n, *row_shape], converted to the file's dtype."""
        assert rows.shape[1:] == self._row_shape
        np.ascontiguousarray(rows, dtype=self._dtype).tofile(self._file)
        self.num_rows += len(rows)

    def close(self) -> None:
        """Write the header; the file can be loaded from now on."""
        if self._file.closed:
            return
        header = io.BytesIO()
        description = np.lib.format.dtype_to_descr(self._dtype)
        shape = (self.num_rows, *self._row_shape)
        np.lib.format.write_array_header_1_0(
            header, {"descr": description, "fortran_order": False, "shape": shape}
        )
        assert len(header.getvalue()) == _HEADER_BYTES
        self._file.seek(0)
        self._file.write(header.getvalue())
        self._file.close()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def mapped(path: Path) -> NDArray[Any]:
    """The array of a .npy file, memory-mapped and read-only.

    The plain view of the map skips the subclass's bookkeeping at every access.
    """
    array: NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    return array
