"""The command `nestpipe report`; it imports what it needs when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import user_errors
from harness.shared_options import AS_JSON

if TYPE_CHECKING:
    from rich.table import Table

    from harness.report.page import Page


@click.command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(file_okay=False, path_type=Path)
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("results/report.html"),
    show_default=True,
    help="The page.",
)
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Tables and Gantt charts as Markdown too, into this file.",
)
@click.option("--force", is_flag=True, help="Overwrite files that are there already.")
@AS_JSON
def report(
    folders: tuple[Path, ...], out: Path, markdown_file: Path | None, force: bool, as_json: bool
) -> None:
    """Make one page of all results below the DIRs, which needs a browser and nothing else.

    It takes what run, reproduce, ablate, train and sweep left there, claims and traces, and shows the latest
    of each set-up; earlier ones make the trends over commits. Figures follow the browser's light or dark.

    \b
    Examples:
        nestpipe report results
        nestpipe report results/runs results/reproduce --out report.html --markdown report.md --force
    """
    with user_errors():
        from harness.report.build import build, write
        from harness.report.render import html, markdown
        from harness.tables import console_for
        from harness.targets import check_target

        targets = [out] if markdown_file is None else [out, markdown_file]
        for target in targets:
            check_target(target, force=force)
        page = build(folders)
        write(out, html(page))
        if markdown_file is not None:
            write(markdown_file, markdown(page))
        table = _contents(page)
        console_for(table).print(table)
        for hint in page.absent:
            click.echo(f"not in it: {hint.what}: {hint.command}")
        for target in targets:
            click.echo(f"written: {target}, {target.stat().st_size / 1e6:.2f} MB")
        if as_json:
            click.echo(json.dumps(_as_json(page, out, markdown_file), allow_nan=False))


def _contents(page: Page) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=f"{page.title}: {page.summary}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("section", no_wrap=True)
    for name in ("tables", "figures", "Gantt charts"):
        table.add_column(name, justify="right", no_wrap=True)
    for section in page.sections:
        kinds = [type(block).__name__ for block in section.blocks]
        table.add_row(
            section.title, *(str(kinds.count(kind) or "-") for kind in ("Table", "Figure", "Timeline"))
        )
    return table


def _as_json(page: Page, out: Path, markdown_file: Path | None) -> dict[str, object]:
    return {
        "html": str(out),
        "markdown": None if markdown_file is None else str(markdown_file),
        "bytes": out.stat().st_size,
        "sections": [section.name for section in page.sections],
        "figures": [figure.name for figure in page.figures()],
        "timelines": [timeline.name for timeline in page.timelines()],
    }
