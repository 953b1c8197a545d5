"""What a report consists of, before it is HTML or Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.simulation.gantt import Chart


@dataclass(frozen=True)
class Table:
    """Text in rows and columns; numbers are formatted already."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    """Footnotes: what a number alone would hide."""
    words: frozenset[str] = frozenset({"method"})
    """Columns of words, which are set to the left; all others hold numbers."""
    failed: frozenset[int] = frozenset()
    """Rows whose check failed."""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.caption


@dataclass(frozen=True)
class Figure:
    """A drawing that scales with the page."""

    name: str
    """Unique in the page, of lower-case letters, digits and dashes."""
    title: str
    svg: str
    """An `<svg>` element whose colours follow the page's; see `harness.report.svg`."""
    is_wide: bool = False
    """Several panels: takes the page's width, and on a narrow page scrolls inside its frame."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """A step as a Gantt chart that can be zoomed."""

    name: str
    chart: Chart
    length_ms: float
    """What the page's width stands for: that of the longest chart it is compared with."""


Block = Table | Figure | Timeline


@dataclass(frozen=True)
class Section:
    """One chapter of the report."""

    name: str
    title: str
    intro: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Hint:
    """Something that a report could hold, and the command that brings it."""

    what: str
    command: str


@dataclass(frozen=True)
class Page:
    """The whole report."""

    title: str
    summary: str
    sections: tuple[Section, ...]
    absent: tuple[Hint, ...] = ()
    """What the results do not hold."""

    def figures(self) -> Iterator[Figure]:
        """All figures in the order of the page."""
        return (block for block in self._blocks() if isinstance(block, Figure))

    def timelines(self) -> Iterator[Timeline]:
        """All Gantt charts in the order of the page."""
        return (block for block in self._blocks() if isinstance(block, Timeline))

    def tables(self) -> Iterator[Table]:
        """All tables in the order of the page."""
        return (block for block in self._blocks() if isinstance(block, Table))

    def _blocks(self) -> Iterator[Block]:
        return (block for section in self.sections for block in section.blocks)


def slug(*parts: object) -> str:
    """A name for an element from words and numbers: lower-case letters, digits and single dashes."""
    text = "-".join(str(part) for part in parts).lower()
    return "-".join(filter(None, "".join(c if c.isascii() and c.isalnum() else "-" for c in text).split("-")))


def told_apart(paths: Iterable[Path]) -> dict[Path, str]:
    """Each path by its name, with as many folders before it as tell it from all others."""
    parts = {path: path.absolute().parts for path in paths}
    num_alike: dict[tuple[str, ...], int] = {}
    for own in parts.values():
        for ending in _endings(own):
            num_alike[ending] = num_alike.get(ending, 0) + 1
    return {
        path: Path(*next(each for each in _endings(own) if num_alike[each] == 1)).as_posix()
        for path, own in parts.items()
    }


def _endings(parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The shortest first."""
    return (parts[start:] for start in reversed(range(len(parts))))


def unique(names: Sequence[str]) -> bool:
    """Whether no two are equal."""
    return len(set(names)) == len(names)
