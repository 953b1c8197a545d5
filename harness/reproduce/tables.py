"""The table of an item: paper, ours, relative error and mark side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich import box
from rich.table import Table

from harness.paper import MARKS
from harness.reproduce.cells import Cell
from harness.reproduce.metrics import unit_of
from harness.tables import console_for

NO_FIGURE = "-"
_COLUMNS = ("paper", "ours", "modelled", "error")


def table(title: str, cells: Sequence[Cell]) -> Table:
    """A line a row and point of the sweep; columns that would stay empty are left out."""
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    grid.add_column("row", no_wrap=True)
    swept = any(cell.group for cell in cells)
    if swept:
        grid.add_column("at", justify="right", no_wrap=True)
    metrics = list(dict.fromkeys(cell.metric for cell in cells))
    shown = {metric: _shown([cell for cell in cells if cell.metric == metric]) for metric in metrics}
    for metric in metrics:
        for position, column in enumerate(shown[metric]):
            head = f"{metric}\n{column}" if position == 0 else f"\n{column}"
            grid.add_column(head, justify="right", no_wrap=True)
    lines = _by_line(cells)
    sections = _sections([place for place, _ in lines])
    for index, ((row, group), by_metric) in enumerate(lines):
        texts = [text for metric in metrics for text in _texts(by_metric.get(metric), shown[metric])]
        # Rich would read "[T]" as markup.
        values = [text.replace("[", "\\[") for text in (row, *([group] if swept else []), *texts)]
        grid.add_row(*values, end_section=sections[index] != sections[min(index + 1, len(lines) - 1)])
    return grid


def print_item(title: str, cells: Sequence[Cell], remarks: Sequence[str] = ()) -> None:
    """Print the table on stdout, and below it how the cells came out and what to know of them."""
    grid = table(title, cells)
    console = console_for(grid)
    console.print(grid)
    for line in (*verdict(cells), *remarks):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict(cells: Sequence[Cell]) -> Iterator[str]:
    """The errors in a line, held-out cells first, and what marks and asterisks mean."""
    referenced = [cell for cell in cells if cell.reference is not None]
    for name, members in (
        ("held out", [cell for cell in referenced if cell.held_out]),
        ("calibrated or declared (*)", [cell for cell in referenced if not cell.held_out]),
    ):
        errors = [(abs(cell.relative_error), cell) for cell in members if cell.relative_error is not None]
        if errors:
            largest, cell = max(errors, key=lambda error: error[0])
            median = float(np.median([error for error, _ in errors]))
            yield (
                f"{name}: {len(members)} cells, |error| median {median:.1%}, "
                f"largest {largest:.1%} ({cell.row}, {cell.column})"
            )
    if len(cells) > len(referenced):
        yield f"{len(cells) - len(referenced)} cells are shown only: the paper has none there"
    marks = dict.fromkeys(cell.reference.mark for cell in referenced if cell.reference is not None)
    if marks:
        yield "; ".join(f"[{mark}] {MARKS[mark]}" for mark in MARKS if mark in marks)


def _shown(cells: Sequence[Cell]) -> list[str]:
    without: set[str] = set()
    if all(cell.reference is None for cell in cells):
        without |= {"paper", "error"}
    if all(cell.ours_modelled is None for cell in cells):
        without.add("modelled")
    return [column for column in _COLUMNS if column not in without]


def _by_line(cells: Sequence[Cell]) -> list[tuple[tuple[str, str], dict[str, Cell]]]:
    lines: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        lines.setdefault((cell.row, cell.group), {})[cell.metric] = cell
    return list(lines.items())


def _sections(places: Sequence[tuple[str, str]]) -> list[str]:
    """What the lines of a section share: the point of the sweep, or where those alternate, the row."""
    rows, groups = ([place[position] for place in places] for position in (0, 1))
    by_group = len(groups) > 1 and groups[0] == groups[1]
    return groups if by_group else rows


def _texts(cell: Cell | None, columns: Sequence[str]) -> Iterator[str]:
    for column in columns:
        if cell is None:
            yield ""
        elif column == "paper":
            reference = cell.reference
            yield NO_FIGURE if reference is None else f"{reference.printed} [{reference.mark}]"
        elif column == "error":
            yield _error(cell)
        else:
            value = cell.ours if column == "ours" else cell.ours_modelled
            yield NO_FIGURE if value is None else number(value, cell.metric)


def _error(cell: Cell) -> str:
    error = cell.relative_error
    if error is None:
        bound = cell.reference is not None and cell.reference.bound and cell.ours is not None
        return "holds" if bound else NO_FIGURE
    return f"{error:+.1%}" + ("" if cell.held_out else "*")


def number(value: float, metric: str) -> str:
    """A value with as many digits as the paper prints of its kind."""
    unit = unit_of(metric)
    if unit == "ms":
        return f"{value:.2f}"
    return f"{value:.1%}" if unit == "fraction" else f"{value:.2f}" + ("x" if unit == "x" else "")
