"""The command `nestpipe compare`; it imports what it needs when it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON

if TYPE_CHECKING:
    from harness.two_folders import Compared, Folder

_folder = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("a", type=_folder)
@click.argument("b", type=_folder)
@AS_JSON
def compare(a: Path, b: Path, as_json: bool) -> None:
    """Compare the step times in two folders that `nestpipe run --out` has filled.

    A ratio is B's median step over A's: below 1, B is faster. It holds what the machine did between the two
    runs as well. Only equal workload, settings, seed and workers are compared.

    Folders of other commands are refused: a sweep compares its own steps, and `nestpipe report A B` shows
    trainings and reproductions.

    \b
    Example:
        nestpipe run torchrec nestpipe --set preset=tiny --out before
        nestpipe run torchrec nestpipe --set preset=tiny --out after
        nestpipe compare before after
    """
    with user_errors():
        from harness.two_folders import as_document, compare_folders, read_folder

        folders = read_folder(a), read_folder(b)
        lines = compare_folders(*folders)
        _print(lines, *folders)
        if as_json:
            click.echo(json.dumps(as_document(*folders, lines), allow_nan=False))


def _print(lines: Sequence[Compared], a: Folder, b: Folder) -> None:
    from rich import box
    from rich.table import Table

    from harness.tables import console_for

    title = f"A: {a.path}, B: {b.path}; medians of the slowest worker (p10-p90)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("workload", "method"):
        table.add_column(name, no_wrap=True)
    for name in ("workers", "A step ms", "B step ms", "B / A", "95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict on B", no_wrap=True)
    for line in lines:
        table.add_row(
            line.workload,
            line.method,
            str(line.workers),
            _step(line.a_ms, line.a_p10_p90),
            _step(line.b_ms, line.b_p10_p90),
            "-" if line.ratio is None else f"{line.ratio:.3f}",
            "-" if line.interval is None else "{:.3f}-{:.3f}".format(*line.interval),
            line.verdict,
        )
    console = console_for(table)
    console.print(table)
    for text in _remarks(lines, a, b):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _remarks(lines: Sequence[Compared], a: Folder, b: Folder) -> Iterator[str]:
    from harness.two_folders import environment_differences

    for line in lines:
        if line.reason:
            workers = f"{line.workers} worker{'s' if line.workers > 1 else ''}"
            yield f"{line.workload}, {line.method}, {workers}: {line.verdict}: {line.reason}"
    different = environment_differences(a, b)
    for name, (own, other) in different.items():
        yield f"{name}: {own} / {other}"
    if any(name.startswith("machine") for name in different):
        yield "two machines: the ratios say nothing about the code"


def _step(median_ms: float | None, spread: tuple[float, float] | None) -> str:
    if median_ms is None:
        return "-"
    return f"{median_ms:.2f}" + ("" if spread is None else " ({:.2f}-{:.2f})".format(*spread))
