"""The report as one HTML page that loads nothing, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.report.layout import layout
from harness.report.page import Block, Figure, Page, Section, Table, Timeline
from harness.simulation.gantt import legend, render

_TEMPLATES = Path(__file__).with_name("templates")
_COLUMNS = 80


def html(page: Page) -> str:
    """The page with style, script and figures inside."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        page=page,
        kinds=_kinds,
        layout=layout,
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        script=(_TEMPLATES / "page.js").read_text(encoding="utf-8"),
    )


def markdown(page: Page) -> str:
    """The tables and Gantt charts as text; figures are in the HTML page alone."""
    parts = [f"# {_plain(page.title)}", _plain(page.summary)]
    for section in page.sections:
        parts += _section(section)
    if page.absent:
        hints = (f"- {_plain(hint.what)}: `{hint.command}`" for hint in page.absent)
        parts += ["## Not in this report", "\n".join(hints)]
    return "\n\n".join(parts) + "\n"


def _kinds(blocks: Iterable[Block]) -> Iterator[tuple[str, Block]]:
    return ((type(block).__name__.lower(), block) for block in blocks)


def _section(section: Section) -> Iterator[str]:
    yield f"## {_plain(section.title)}"
    yield _plain(section.intro)
    timelines = [block for block in section.blocks if isinstance(block, Timeline)]
    for block in section.blocks:
        if isinstance(block, Table):
            yield from _table(block)
        elif isinstance(block, Figure):
            if block.notes:
                yield f"{_plain(block.title)}\n\n{_bullets(block.notes)}"
        else:
            yield f"```text\n{render(block.chart, _COLUMNS).plain.rstrip()}\n```"
    if timelines:
        yield _plain(legend())


def _table(table: Table) -> Iterator[str]:
    yield f"**{_plain(table.caption)}**"
    head = _line(table.columns)
    rule = "|" + "|".join("---" if column in table.words else "--:" for column in table.columns) + "|"
    yield "\n".join([head, rule, *map(_line, table.rows)])
    if table.notes:
        yield _bullets(table.notes)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(line)}" for line in lines)


def _plain(text: str) -> str:
    """The text with everything that Markdown or HTML would read as markup escaped."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
