"""One page with everything in it, built once for all tests of the report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.report.build import build
from harness.report.page import Page
from harness.report.render import html, markdown
from tests.harness.report import sample


@dataclass(frozen=True)
class Built:
    """A report, and what it took."""

    page: Page
    html: str
    markdown: str
    cpu_s: float


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The report of five methods at five sizes, and of every other kind of result."""
    folder = tmp_path_factory.mktemp("results")
    sample.write_everything(folder)
    began = time.process_time()
    page = build([folder])
    text = html(page)
    cpu_s = time.process_time() - began
    return Built(page, text, markdown(page), cpu_s)


@pytest.fixture(scope="session")
def page_file(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page on disk."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(built.html, encoding="utf-8")
    return path
