"""The page in a real browser, narrow and wide: nothing on the console, every figure there, no overflow."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.report.conftest import Built

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
_TIMEOUT_S = 90

# A window has a smallest width; a frame in it has none. Its page leaves what it saw on the window's root.
_WINDOW = """<!doctype html><html style="color-scheme: light dark"><body style="margin: 0">
<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{page}"></iframe></body></html>"""
_PROBE = """
addEventListener("load", () => {
  const boxes = (selector) => [...document.querySelectorAll(selector)].map((element) => {
    const box = element.getBoundingClientRect();
    return { id: element.id, left: box.left, right: box.right, width: box.width, height: box.height };
  });
  const colour = (selector) => getComputedStyle(document.querySelector(selector)).fill;
  const seen = {
    width: innerWidth,
    clientWidth: document.documentElement.clientWidth,
    scrollWidth: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    page: getComputedStyle(document.body).backgroundColor,
    ink: colour("figure:not(.timeline) svg text"),
    figures: boxes("figure"),
    drawings: boxes("figure svg"),
  };
  const timeline = document.querySelector(".timeline");
  const [drawing, frame] = [timeline.querySelector(".gantt"), timeline.querySelector(".frame")];
  const labels = () => [...drawing.querySelectorAll(".bar text")]
    .filter((text) => text.getAttribute("visibility") === "visible").length;
  const widths = [drawing.getBoundingClientRect().width], shown = [labels()];
  for (const factor of ["2", "2", "2", "0"]) {
    timeline.querySelector(`button[data-factor="${factor}"]`).click();
    widths.push(drawing.getBoundingClientRect().width);
    shown.push(labels());
  }
  Object.assign(seen, { widths, shown, frame: frame.getBoundingClientRect().width });
  parent.document.documentElement.dataset.seen = JSON.stringify(seen);
});
"""

pytestmark = [
    pytest.mark.timeout(2 * _TIMEOUT_S),
    pytest.mark.skipif(_BROWSER is None, reason=f"needs a browser: one of {', '.join(_NAMES)}"),
]


def look(
    path: Path, probe: str, profile: Path, *, width: int, dark: bool
) -> tuple[dict[str, Any], list[str]]:
    """What the probe saw on the page in a frame of that width, and the lines on the console."""
    assert _BROWSER is not None
    profile.mkdir()
    page = path.read_text(encoding="utf-8").replace("<head>", f"<head><script>{probe}</script>", 1)
    window = profile / "window.html"
    window.write_text(_WINDOW.format(width=width, page=html.escape(page)), encoding="utf-8")
    command = [
        _BROWSER,
        "--headless",
        "--no-sandbox",  # tests may run as root, in a container
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--v=0",
        f"--user-data-dir={profile}",
        "--window-size=1400,900",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--dump-dom",
        window.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])) if found else {}, console


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_every_figure_is_visible_and_nothing_overflows(
    built: Built, page_file: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    seen, console = look(page_file, _PROBE, tmp_path / "profile", width=width, dark=dark)
    assert console == []
    assert seen["width"] == width
    assert seen["scrollWidth"] <= seen["clientWidth"]

    names = [figure.name for figure in built.page.figures()]
    names += [timeline.name for timeline in built.page.timelines()]
    assert {box["id"] for box in seen["figures"]} == set(names)
    assert len(seen["drawings"]) == len(names)
    for box in seen["figures"]:
        assert 0 <= box["left"] < box["right"] <= seen["clientWidth"], box
    for box in seen["drawings"]:
        assert box["width"] > 0.45 * min(width, 640), box
        assert box["height"] > 60, box

    assert seen["dark"] is dark
    page, ink = (sum(map(int, re.findall(r"\d+", seen[name])[:3])) for name in ("page", "ink"))
    assert (ink - page if dark else page - ink) > 400


def test_zooming_widens_a_gantt_chart_and_shows_more_labels(page_file: Path, tmp_path: Path) -> None:
    seen, console = look(page_file, _PROBE, tmp_path / "profile", width=700, dark=False)
    assert console == []
    first = seen["widths"][0]
    assert first == pytest.approx(seen["frame"], abs=1)
    assert seen["widths"] == pytest.approx([first, 2 * first, 4 * first, 8 * first, first], abs=2)
    assert seen["shown"][0] < seen["shown"][3]
    assert seen["shown"][4] == seen["shown"][0]


def test_an_error_on_the_page_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><html><head></head><body><script>missing()</script></body></html>")
    _, console = look(page, "", tmp_path / "profile", width=400, dark=False)
    assert any("missing is not defined" in line for line in console)
