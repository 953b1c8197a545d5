"""How text files of one row a line are written, and what their cells may hold."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

_INT64 = range(-(2**63), 2**63)
LONGEST_NAME_BYTES = 256


class Kind(Enum):
    """What the cells of a column hold: what is expected, the pattern of a whole cell, and Arrow's type."""

    INTEGER = ("an integer", r"\s*-?\d+\s*", pa.int64())
    INTEGER_ID = ("an integer as before it (are ids text: text_ids=true)", r"\s*-?\d+\s*", pa.int64())
    INTEGER_OR_BLANK = ("an integer or nothing", r"(\s*-?\d+\s*)?", pa.int64())
    NUMBER = ("a finite number", r"\s*-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", pa.float64())
    NUMBER_OR_BLANK = (
        "a finite number or nothing",
        r"(\s*-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*)?",
        pa.float64(),
    )
    BINARY = ("0 or 1", r"\s*[01]\s*", pa.int8())
    HEX_OR_BLANK = ("up to 8 hexadecimal digits or nothing", r"[0-9a-fA-F]{0,8}", pa.string())
    NAME = ("an id of 1 to 256 bytes", r".+", pa.string())
    ANYTHING = ("UTF-8 text", r".*", pa.string())

    def __init__(self, expected: str, pattern: str, arrow: pa.DataType) -> None:
        self.expected = expected
        self.arrow = arrow
        self._pattern = re.compile(pattern, re.DOTALL)

    @property
    def is_numeric(self) -> bool:
        """Whether every cell is a number."""
        return self in (Kind.INTEGER, Kind.INTEGER_ID, Kind.NUMBER)

    def fits(self, cell: str) -> bool:
        """Whether a cell can be read as this kind."""
        if not self._pattern.fullmatch(cell) or "\ufffd" in cell:
            return False
        if self is Kind.NAME:
            return len(cell.encode()) <= LONGEST_NAME_BYTES
        if pa.types.is_integer(self.arrow) and cell.strip():
            return int(cell) in _INT64
        is_float = pa.types.is_floating(self.arrow) and cell.strip()
        return not is_float or math.isfinite(float(cell))


@dataclass(frozen=True)
class Column:
    """A column of a file; the cells of one that is not `used` are not looked at."""

    name: str
    kind: Kind
    used: bool = True


@dataclass(frozen=True)
class Delimited:
    """How a family of files is written: all columns in their order, named in the first line or not.

    A `separator` of several characters is one character repeated. Cells may stand in double quotes only
    where `quoted`. Files whose names end in .gz are compressed.
    """

    name: str
    separator: str
    columns: tuple[Column, ...]
    has_header: bool
    quoted: bool = False

    @property
    def header(self) -> str:
        return self.separator.join(column.name for column in self.columns)

    def cells_of(self, line: str) -> list[str]:
        """The cells of a line."""
        if not self.quoted:
            return line.split(self.separator)
        return next(csv.reader([line], delimiter=self.separator), [])

    def problem_of(self, line: str) -> str:
        """Why a line below the header does not fit, "" if it does."""
        cells = self.cells_of(line)
        if len(cells) != len(self.columns):
            shown = self.header.replace("\t", "<tab>")
            return f"{len(cells)} columns, expected {len(self.columns)} ({shown})"
        for column, cell in zip(self.columns, cells, strict=True):
            if column.used and not column.kind.fits(cell):
                return f"{column.name} is {cell!r}, expected {column.kind.expected}"
        return ""

    def begins_with(self, line: str) -> bool:
        """Whether a file's first line is this header or, without one, a row."""
        if self.has_header:
            return self.cells_of(line) == [column.name for column in self.columns]
        return not self.problem_of(line)

    def missing_in(self, line: str) -> list[str]:
        """The names that a first line lacks which has most of the header's; empty for other first lines."""
        names, cells = [column.name for column in self.columns], self.cells_of(line)
        missing = [name for name in names if name not in cells]
        return missing if self.has_header and 2 * len(missing) < len(names) else []
