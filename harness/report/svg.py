"""A matplotlib figure as an SVG element for a page: text stays text, and its colours follow the page's."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

_PALETTE = tuple(sns.color_palette("colorblind").as_hex())
# What seaborn and matplotlib draw text, frames, grids and the edges of markers with. The variables are those
# of the page's style sheet.
_COLOURS: Mapping[str, str] = {
    "#000000": "currentColor",
    "#262626": "currentColor",
    "#cccccc": "var(--grid)",
    "#808080": "var(--muted)",
    **{colour: f"var(--colour-{index})" for index, colour in enumerate(_PALETTE)},
}
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_TAG = re.compile(r"<[^>]+>")
_ELEMENT = re.compile(r"<svg\b[^>]*>.*</svg>", re.DOTALL)
_DROPPED = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->|^\s+|\s+$", re.DOTALL | re.MULTILINE)
_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
_SIZE = re.compile(r'(<svg\b[^>]*?) width="([\d.]+)pt" height="[\d.]+pt"')
_NUMBER = re.compile(r"(?<=[ \"])(-?\d+\.\d{2})\d+")
_FONT = re.compile(r"font: ([^;']*?) 'DejaVu Sans'[^;\"]*")


def svg_of(figure: Figure, name: str, title: str) -> str:
    """The figure as one `<svg>` element that is described by `title` and as wide as the style sheet says.

    Its own width is there as `--natural`. Ids begin with `name`, so that several figures share a page.
    """
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in legends:
        if legend is not None:
            legend.get_frame().set_visible(False)
    buffer = io.BytesIO()
    # The salt makes ids, and with them the page, the same each time.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _embedded(buffer.getvalue().decode(), name, title)


def _embedded(text: str, name: str, title: str) -> str:
    found = _ELEMENT.search(text)
    assert found is not None
    svg = _DROPPED.sub("", found[0])
    svg = _SIZE.sub(lambda size: f'{size[1]} style="--natural: {float(size[2]) / 72:.2f}in"', svg, count=1)
    # Inside tags alone: what a label says stays as it is.
    svg = _TAG.sub(lambda tag: _themed(tag[0], name), svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{_escaped(title)}" ', 1)


def _themed(tag: str, name: str) -> str:
    tag = _REFERENCE.sub(rf"\g<1>{name}-", tag)
    tag = _FONT.sub(r"font: \1 var(--font)", tag)
    tag = _NUMBER.sub(r"\1", tag)
    tag = tag.replace("stroke: #ffffff", "stroke: var(--page)")
    return _COLOUR.sub(lambda colour: _COLOURS.get(colour[0], colour[0]), tag)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
