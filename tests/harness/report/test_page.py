"""The page as a whole: what is in it, that it needs nothing else, and what it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from harness.report.build import build
from harness.report.page import Table
from harness.report.render import html, markdown
from tests.harness.report import sample
from tests.harness.report.conftest import Built

_VOID = {"meta", "br", "link", "img", "input", "hr"}
_LOADING = {"src", "srcset", "data", "poster", "action", "background"}


class Outline(HTMLParser):
    """Ids, links and elements of a page; that every element is closed where it has to be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.loads: list[tuple[str, str]] = []
        self.counts: dict[str, int] = {}
        self.svg_attributes: list[dict[str, str | None]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if values.get("id"):
            self.ids.append(values["id"] or "")
        for name, value in attrs:
            if name in ("href", "xlink:href"):
                self.targets.append(value or "")
            if name in _LOADING or tag in ("link", "iframe", "object", "embed", "img"):
                self.loads.append((tag, name))
        if tag == "svg":
            self.svg_attributes.append(values)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_every_kind_of_result_has_its_section(built: Built) -> None:
    assert [section.name for section in built.page.sections] == [
        "environment",
        "comparison",
        "paper",
        "communication",
        "training",
        "timeline",
        "ladder",
        "claims",
        "trends",
    ]
    names = {figure.name for figure in built.page.figures()}
    run = "run-20261130t000000z-000002"
    wanted = {f"{run}-breakdown-{size}" for size in sample.SIZES}
    wanted |= {f"{run}-{name}" for name in ("qps", "efficiency", "loss")}
    assert wanted <= names
    assert {"item-table2", "item-table3", "item-fig7", "communication"} <= {
        name.rpartition("-2")[0] if name.startswith("item") else name.partition("-")[0] for name in names
    }


def test_the_page_is_whole_and_loads_nothing(built: Built) -> None:
    outline = Outline(built.html)
    drawn = [figure.name for figure in built.page.figures()]
    drawn += [timeline.name for timeline in built.page.timelines()]
    assert len(outline.ids) == len(set(outline.ids))
    assert set(drawn) <= set(outline.ids)
    assert outline.counts["figure"] == outline.counts["svg"] == len(drawn)
    assert outline.counts["table"] == len(list(built.page.tables()))
    assert outline.loads == []
    assert outline.targets
    for target in outline.targets:
        assert target.startswith("#")
        assert target[1:] in outline.ids
    for reference in re.findall(r"url\(([^)]*)\)", built.html):
        assert reference[1:] in outline.ids
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", built.html))
    # Names of XML vocabularies, which no browser fetches.
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in built.html


def test_text_in_figures_is_text_and_colours_are_the_pages(built: Built) -> None:
    for figure in built.page.figures():
        assert "<text" in figure.svg
        assert "#262626" not in figure.svg
        assert "#000000" not in figure.svg
        assert "currentColor" in figure.svg
        assert "var(--natural" not in figure.svg
    for values in Outline(built.html).svg_attributes:
        assert values["aria-label"]
        assert values["role"] == "img"


def test_five_methods_at_five_sizes_are_quick_and_small(built: Built) -> None:
    # Processor time: other work on the machine does not count.
    assert built.cpu_s < 10
    assert len(built.html.encode()) < 3e6
    assert len(built.markdown.encode()) < 1e5


def test_equal_results_make_equal_pages(tmp_path: Path) -> None:
    sample.write_run(tmp_path, "20261130T000000Z-000001", sizes=(1,))
    assert html(build([tmp_path])) == html(build([tmp_path]))


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    hostile = '<script>alert("a|b #262626 $x^$ 0.12345")</script>'
    sample.write_run(
        tmp_path, "20261130T000000Z-000001", sizes=(2,), methods=("torchrec", hostile), workload=hostile
    )
    page = build([tmp_path])
    outline = Outline(html(page))
    assert outline.counts["script"] == 1
    assert all("#262626 $x^$ 0.12345" in figure.svg for figure in page.figures())
    rows = [line for line in markdown(page).splitlines() if line.startswith("| \\<script")]
    (table,) = [block for block in page.sections[1].blocks if isinstance(block, Table)]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == len(table.columns) + 1


def test_markdown_has_the_tables_and_gantt_charts(built: Built) -> None:
    for table in built.page.tables():
        assert table.rows[-1][0].replace("_", "\\_") in built.markdown
    assert built.markdown.count("```text") == len(list(built.page.timelines()))
    assert "compute ." in built.markdown
    assert "<svg" not in built.markdown


def test_a_report_imports_no_torch(repository: Path) -> None:
    code = "import harness.report.build, harness.report.render, sys; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True, cwd=repository
    )
    assert done.stdout.strip() == "False"
