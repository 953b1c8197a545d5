"""Reading text files of one row a line, in blocks.

A broken row is named by file, line, what stands there and what was expected. Arrow's reader does the
reading; where it fails, a slow second reading finds the line.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from workloads.forms import LONGEST_NAME_BYTES, Delimited, Kind

# Arrow reads up to 32 blocks ahead.
BLOCK_BYTES = 1 << 22
_LONGEST_LINE = 1 << 20


def first_line(path: Path) -> str:
    """The first line of a file, "" where it has none."""
    return first_lines(path, 1)[0]


def first_lines(path: Path, num: int) -> list[str]:
    """The first `num` lines of a file, "" where it has fewer; of very long ones the beginning."""
    with _whole(path, lambda: 0), _opened(path) as file:
        return [file.readline(_LONGEST_LINE).rstrip("\r\n") for _ in range(num)]


def read_blocks(path: Path, form: Delimited, block_bytes: int = BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows of one file in their order, the used columns by their names.

    ValueError names the file and the line that does not fit the form, and a file without rows.
    """
    if next(_rows(path, form), None) is None:
        raise ValueError(f"{path}: no rows, expected lines of {form.header!r}")
    try:
        with _opened_by_arrow(path) as file:
            for block in pa.csv.open_csv(file, *_options(form, block_bytes)):
                _check(block, form)
                yield block
    except (pa.ArrowException, _UnfitCellError, OSError) as error:
        raise located(path, form, error) from error


class _UnfitCellError(Exception):
    """A cell of Arrow's type that its column's kind does not allow."""


def _check(block: pa.RecordBatch, form: Delimited) -> None:
    """Fail for what Arrow lets pass: blanks where there must be none, infinities, ids of no length."""
    for column in form.columns:
        if column.used and not _fits(block.column(column.name), column.kind):
            raise _UnfitCellError(f"{column.name}: expected {column.kind.expected}")


def _fits(cells: pa.Array, kind: Kind) -> bool:
    if kind in (Kind.INTEGER_OR_BLANK, Kind.HEX_OR_BLANK, Kind.ANYTHING):
        return True
    if kind is Kind.NUMBER_OR_BLANK:
        return not pa.compute.any(pa.compute.invert(pa.compute.is_finite(cells))).as_py()
    if cells.null_count:
        return False
    if kind is Kind.NUMBER:
        return bool(np.isfinite(cells.to_numpy()).all())
    if kind is Kind.BINARY:
        return bool(((cells.to_numpy() | 1) == 1).all())
    if kind is Kind.NAME and len(cells):
        lengths = pa.compute.binary_length(cells).to_numpy()
        return bool(lengths.min() >= 1 and lengths.max() <= LONGEST_NAME_BYTES)
    return True


def located(path: Path, form: Delimited, error: Exception) -> ValueError:
    """The error with the first line that does not fit, found by a slow second reading."""
    for number, row in _rows(path, form):
        problem = form.problem_of(row)
        if problem:
            return ValueError(f"{path}, line {number}: {problem}")
    return ValueError(f"{path}: {error}")


def _options(form: Delimited, block_bytes: int) -> tuple[Any, Any, Any]:
    # A separator of several characters leaves empty columns between the others.
    num_gaps = len(form.separator) - 1
    names: list[str] = []
    types: dict[str, pa.DataType] = {}
    for index, column in enumerate(form.columns):
        gaps = [f"gap {gap} before {column.name}" for gap in range(num_gaps if index else 0)]
        names += [*gaps, column.name]
        types |= dict.fromkeys(gaps, pa.null())
        types |= {column.name: column.kind.arrow} if column.used else {}
    return (
        pa.csv.ReadOptions(
            use_threads=False,
            block_size=block_bytes,
            column_names=names,
            skip_rows=int(form.has_header),
        ),
        pa.csv.ParseOptions(delimiter=form.separator[0], quote_char='"' if form.quoted else False),
        pa.csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=[""],
            strings_can_be_null=False,
            quoted_strings_can_be_null=False,
        ),
    )


def _opened_by_arrow(path: Path) -> Any:
    if path.suffix == ".gz":
        return pa.input_stream(str(path), compression="gzip")
    return pa.OSFile(str(path))


def _rows(path: Path, form: Delimited) -> Iterator[tuple[int, str]]:
    """The rows with the numbers of their lines, without blank lines."""
    lines = itertools.islice(_lines(path), int(form.has_header), None)
    return ((number, line) for number, line in lines if line)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, from 1; ValueError where a compressed file ends too soon."""
    number = 0
    with _whole(path, lambda: number), _opened(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, line.rstrip("\r\n")


@contextmanager
def _whole(path: Path, num_read: Callable[[], int]) -> Iterator[None]:
    """Turns the errors of a broken compressed file into one that says after which line it broke."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}, after line {num_read()}: expected a whole gzip file ({error})") from error


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")
