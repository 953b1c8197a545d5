"""Reading interactions from text files of one layout, in chunks, with errors that name the line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_CHUNK_ROWS = 2_000_000
_DTYPES: dict[type, Any] = {int: np.int64, float: np.float64, str: str}
_EXPECTED = {int: "an integer", float: "a finite number", str: "text"}


@dataclass(frozen=True)
class Layout:
    """How a family of files is written, and what its columns mean.

    `columns` are all columns in their order, as the header has them where `has_header`; they hold
    integers unless named in `float_columns` or `text_columns`. `user`, `item` and `time` name three of
    them, and `action` makes an action's weight from all. A `separator` of several characters is one
    character repeated.
    """

    name: str
    separator: str
    columns: tuple[str, ...]
    has_header: bool
    user: str
    item: str
    time: str
    action: Callable[[pd.DataFrame], NDArray[np.float32]]
    times_a_second: int = 1
    ties_by_item: bool = False
    float_columns: tuple[str, ...] = ()
    text_columns: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        return self.separator.join(self.columns)

    def type_of(self, column: str) -> type:
        """int, float or str."""
        if column in self.text_columns:
            return str
        return float if column in self.float_columns else int

    def problem_of(self, line: str) -> str:
        """Why a line does not fit, "" if it does."""
        cells = line.split(self.separator)
        if len(cells) != len(self.columns):
            return f"{len(cells)} columns, expected {len(self.columns)} ({self.header!r})"
        for name, cell in zip(self.columns, cells, strict=True):
            kind = self.type_of(name)
            if not _fits(cell, kind):
                return f"{name} is {cell!r}, expected {_EXPECTED[kind]}"
        return ""

    def is_layout_of(self, path: Path) -> bool:
        """Whether the first line of the file is this layout's header or, without one, fits it."""
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            line = file.readline().rstrip("\r\n")
        return line == self.header if self.has_header else not self.problem_of(line)


def read_chunks(
    path: Path, layout: Layout, chunk_rows: int = _CHUNK_ROWS
) -> Iterator[dict[str, NDArray[Any]]]:
    """Interactions of one file in its order: user, item, time (int64) and action (float32).

    ValueError names the file and the line that does not fit the layout, or an empty file.
    """
    _check_first_row(path, layout)
    try:
        for frame in _frames(path, layout, chunk_rows):
            yield _interactions(frame, layout)
    except (ValueError, OverflowError) as error:
        # pandas says neither line nor value for most of its errors: look for them.
        raise _located(path, layout, error) from error


def _rows(path: Path, layout: Layout) -> Iterator[tuple[int, str]]:
    """The lines below the header with their numbers, without blank ones."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if line.strip() and not (number == 1 and layout.has_header):
                yield number, line.rstrip("\r\n")


def _check_first_row(path: Path, layout: Layout) -> None:
    """Fail for no row, and for a first one with too many columns: pandas cuts all that are as long."""
    number, row = next(_rows(path, layout), (0, ""))
    if number == 0:
        raise ValueError(f"{path}: no interactions, expected lines of {layout.header!r}")
    problem = layout.problem_of(row)
    if problem:
        raise ValueError(f"{path}, line {number}: {problem}")


def _frames(path: Path, layout: Layout, chunk_rows: int) -> Iterator[pd.DataFrame]:
    # All columns are read: told to leave some out, pandas lets lines with too many pass.
    names, dtypes = _columns_as_pandas_sees_them(layout)
    reader = pd.read_csv(
        path,
        sep=layout.separator[0],
        header=None,
        skiprows=1 if layout.has_header else 0,
        names=names,
        dtype=dtypes,
        index_col=False,
        quoting=csv.QUOTE_NONE,
        chunksize=chunk_rows,
        engine="c",
    )
    with reader:
        yield from reader


def _columns_as_pandas_sees_them(layout: Layout) -> tuple[list[str], dict[str, Any]]:
    """Names and dtypes, with an empty column in every gap that a repeated separator makes."""
    gaps = len(layout.separator) - 1
    dtypes: dict[str, Any] = {}
    for index, column in enumerate(layout.columns):
        if index:
            dtypes |= {f"gap {gap} before {column}": np.float64 for gap in range(gaps)}
        dtypes[column] = _DTYPES[layout.type_of(column)]
    return list(dtypes), dtypes


def _interactions(frame: pd.DataFrame, layout: Layout) -> dict[str, NDArray[Any]]:
    floats = [name for name in layout.columns if layout.type_of(name) is float]
    if not np.isfinite(frame[floats].to_numpy()).all() or frame.iloc[:, -1].isna().any():
        raise ValueError("a value is missing or not finite")
    return {
        "user": frame[layout.user].to_numpy(),
        "item": frame[layout.item].to_numpy(),
        "time": frame[layout.time].to_numpy().astype(np.int64),
        "action": layout.action(frame),
    }


def _located(path: Path, layout: Layout, error: Exception) -> ValueError:
    """The error with the first line that does not fit, found by a slow second reading."""
    for number, row in _rows(path, layout):
        problem = layout.problem_of(row)
        if problem:
            return ValueError(f"{path}, line {number}: {problem}")
    return ValueError(f"{path}: {error}")


def _fits(cell: str, kind: type) -> bool:
    if kind is str:
        return True
    try:
        return bool(np.isfinite(float(cell))) if kind is float else -(2**63) <= int(cell) < 2**63
    except ValueError:
        return False
