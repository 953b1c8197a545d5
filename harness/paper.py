"""The paper's figures: one file of `results/paper` an item, each cell as printed and with its mark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness.options import nearest

FOLDER = Path(__file__).resolve().parents[1] / "results" / "paper"
MARKS: Mapping[str, str] = {
    "T": "printed in a table of the paper",
    "S": "stated by a published summary of the paper",
    "D": "derived from figures with the other two marks",
    "?": "conflicting or unverified: never a reference",
}
_PRINTED = re.compile(r"(?P<bound>[<>]?)(?P<number>-?\d+(\.\d+)?(e-?\d+)?)(?P<unit>[%x]?)")
_FIELDS = {"row", "column", "printed", "mark"}


@dataclass(frozen=True)
class PaperCell:
    """One figure of the paper, as a source prints it: `1.36`, `3.06x`, `94.07%`, or a bound, `>90%`."""

    row: str
    column: str
    printed: str
    mark: str
    """One of MARKS."""

    def __post_init__(self) -> None:
        where = f"cell {self.row!r}, {self.column!r}"
        if not _PRINTED.fullmatch(self.printed):
            raise ValueError(f"{where}: {self.printed!r} is no number, such as 1.36, 3.06x, 94.07% or >90%")
        if self.mark not in MARKS:
            raise ValueError(f"{where}: unknown mark {self.mark!r}; known: {', '.join(MARKS)}")

    @property
    def value(self) -> float:
        """The figure; a percentage as a fraction."""
        return float(self._number())

    @property
    def bound(self) -> str:
        """ ">" or "<" where the source states a bound, else ""."""
        return self._match()["bound"]

    @property
    def interval(self) -> tuple[float, float]:
        """The values that round to what is printed: half a unit of the last digit to either side."""
        number = self._number()
        exponent = number.as_tuple().exponent
        assert isinstance(exponent, int)
        half = Decimal(5).scaleb(exponent - 1)
        return float(number - half), float(number + half)

    def relative_error(self, ours: float) -> float | None:
        """The signed error of `ours`, a fraction of the nearest edge of `interval`; 0 inside it.

        None where there is nothing to be off from: a bound that holds, a figure marked "?".
        """
        if self.mark == "?":
            return None
        if self.bound:
            holds = ours > self.value if self.bound == ">" else ours < self.value
            return None if holds else (ours - self.value) / abs(self.value)
        low, high = self.interval
        if low <= ours <= high:
            return 0.0
        edge = low if ours < low else high
        return (ours - edge) / abs(edge)

    def _match(self) -> re.Match[str]:
        match = _PRINTED.fullmatch(self.printed)
        assert match is not None
        return match

    def _number(self) -> Decimal:
        match = self._match()
        return Decimal(match["number"]).scaleb(-2 if match["unit"] == "%" else 0)


@dataclass(frozen=True)
class Paper:
    """The paper's cells of one table or figure."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    cells: Mapping[tuple[str, str], PaperCell]
    """By row and column."""

    def get(self, row: str, column: str) -> PaperCell | None:
        """The paper's cell, or None where it has none."""
        return self.cells.get((row, column))


def names(folder: Path = FOLDER) -> list[str]:
    """Every table and figure there is data of."""
    return sorted(path.stem for path in folder.glob("*.json"))


def load(name: str, folder: Path = FOLDER) -> Paper:
    """One table or figure; ValueError for an unknown name, or naming the file that is broken.

    FileNotFoundError outside a checkout: the figures are no part of the installed packages.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: the paper's figures are missing; install a checkout with pip -e")
    path = folder / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"no figures of {name!r}: {nearest(name, names(folder))}")
    try:
        return _parse(name, json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _parse(name: str, entry: Mapping[str, Any]) -> Paper:
    cells: dict[tuple[str, str], PaperCell] = {}
    for fields in entry["cells"]:
        if set(fields) != _FIELDS:
            raise ValueError(f"a cell needs {', '.join(sorted(_FIELDS))}, got {', '.join(sorted(fields))}")
        cell = PaperCell(**fields)
        if (cell.row, cell.column) in cells:
            raise ValueError(f"cell {cell.row!r}, {cell.column!r} is given twice")
        cells[cell.row, cell.column] = cell
    return Paper(name, entry["title"], entry["source"], tuple(entry["notes"]), cells)
