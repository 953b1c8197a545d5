"""Where results go: what cannot be written, or must not be written over, is told before the work begins."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def check_folder(folder: Path) -> None:
    """Make the folder; ValueError with the way out where it takes no file."""
    if problem := _problem_of(folder):
        raise ValueError(f"cannot write into {folder} ({problem}): make it writable, or use another --out")


def check_file(path: Path) -> None:
    """As `check_folder`, of a file that results are added to; one that is there is left as it is."""
    check_folder(path.parent)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and results go into a file of that name: use another --out")
    if not path.exists():
        return
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write to {path} ({error.strerror}): make it writable, or use another --out"
        ) from None


def check_target(path: Path, *, force: bool, instead: str = "name another file") -> None:
    """Make the folder of a file that is written whole; one that is there already needs `force`.

    ValueError with `instead` as the way out beside --force.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    if path.exists() and not force:
        raise ValueError(f"{path} exists; --force overwrites it, or {instead}")
    if path.exists() and not os.access(path, os.W_OK):
        raise ValueError(f"{path} cannot be written; {instead}")
    if problem := _problem_of(path.parent):
        raise ValueError(f"cannot write into {path.parent} ({problem}); name another folder")


def _problem_of(folder: Path) -> str:
    """Why the folder, made where it is not there, takes no file; "" where it does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return error.strerror or str(error)
    return ""
