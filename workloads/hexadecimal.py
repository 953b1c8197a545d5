"""Hexadecimal text to integers, a column at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

_NUM_DIGITS = 8
_DIGITS = b"0123456789abcdefABCDEF"


def parse_hexadecimal(cells: pa.Array) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """The numbers of cells of up to 8 hexadecimal digits, and which cells are blank (their number is 0).

    From strings [n] to [n] and [n]. ValueError for any other cell.
    """
    lengths = pa.compute.binary_length(cells).to_numpy()
    is_blank = lengths == 0
    if len(lengths) and lengths.max() > _NUM_DIGITS:
        raise ValueError(f"a cell has {lengths.max()} characters, expected at most {_NUM_DIGITS}")
    if (~is_blank & (lengths < _NUM_DIGITS)).any():
        padded = pa.compute.utf8_lpad(cells, _NUM_DIGITS, "0")
        cells = pa.compute.if_else(pa.array(is_blank), cells, padded)
    values = np.zeros(len(lengths), dtype=np.uint32)
    values[~is_blank] = _values_of(_characters_of(cells))
    return values, is_blank


def _characters_of(cells: pa.Array) -> NDArray[np.uint8]:
    """The characters of all cells, one cell after the other: blank cells take no place."""
    _, offsets_buffer, data = cells.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[cells.offset : cells.offset + len(cells) + 1]
    if len(offsets) == 0 or offsets[0] == offsets[-1]:
        return np.zeros(0, np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _values_of(characters: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """From digits [8 n] to numbers [n]: all eight digits of a number at once, as bytes of one word."""
    is_digit = np.zeros(256, dtype=np.bool_)
    is_digit[list(_DIGITS)] = True
    if not is_digit[characters].all():
        raise ValueError("a cell holds a character that is no hexadecimal digit")
    words = characters.view("<u8")
    # '0' to '9' end in their value; letters, which have bit 6 set, in theirs less 9.
    words = (words & 0x0F0F0F0F0F0F0F0F) + 9 * ((words >> 6) & 0x0101010101010101)
    # The first digit is the lowest byte and the highest in value: neighbours are joined three times.
    words = ((words & 0x00FF00FF00FF00FF) << 4) | ((words >> 8) & 0x00FF00FF00FF00FF)
    words = ((words & 0x0000FFFF0000FFFF) << 8) | ((words >> 16) & 0x0000FFFF0000FFFF)
    return (((words & 0xFFFFFFFF) << 16) | (words >> 32)).astype(np.uint32)
