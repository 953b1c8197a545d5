"""Which files a `path` setting names, and which layout they have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workloads.delimited import first_line
from workloads.tables import Layout


def existing_paths(path: str) -> list[Path]:
    """The files and folders of a `path` setting; FileNotFoundError for one that is not there."""
    whole = Path(path).expanduser()
    if whole.exists():
        return [whole]
    given = [Path(part.strip()).expanduser() for part in path.split(",") if part.strip()]
    for item in given:
        if not item.exists():
            raise FileNotFoundError(f"path={path}: {item} does not exist")
    return given


def one_layout(files: Sequence[Path], layouts: Sequence[Layout]) -> Layout:
    """The layout that every one of `files` has, by its first line.

    ValueError for a file that has none of them and for files of different layouts.
    """
    found = [_layout_of(file, layouts) for file in files]
    for file, layout in zip(files, found, strict=True):
        if layout is not found[0]:
            raise ValueError(
                f"{files[0]} is written as {found[0].name} and {file} as {layout.name}: "
                "give files of one kind"
            )
    return found[0]


def _layout_of(file: Path, layouts: Sequence[Layout]) -> Layout:
    line = first_line(file)
    for layout in layouts:
        if layout.form.begins_with(line):
            return layout
    for layout in layouts:
        missing = layout.form.missing_in(line)
        if missing:
            raise ValueError(
                f"{file}, line 1: the header lacks {', '.join(missing)}, expected that of {layout.name}: "
                f"{layout.form.header!r}"
            )
    expected = "; ".join(
        f"{layout.name} ({'with' if layout.form.has_header else 'without'} the header {layout.form.header!r})"
        for layout in layouts
    )
    raise ValueError(f"{file}, line 1: no known kind of file, expected one of: {expected}")
