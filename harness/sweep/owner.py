"""Whose folder it is: a sweep in another file of the same name must not write over its ladder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.sweep.journal import CELLS_FILE
from harness.sweep.plan import Sweep

OWNER_FILE = "sweep.json"


def check_owner(folder: Path, file: Path, sweep: Sweep) -> None:
    """Refuse a folder with cells that were measured for another plan in another file.

    A plan may change where it is, which measures the steps that are new, and may move as it is. ValueError
    with the way out, and for a damaged file.
    """
    kept = folder / OWNER_FILE
    if not (folder / CELLS_FILE).exists() or not kept.is_file():
        return
    try:
        owner = json.loads(kept.read_bytes())
        other, is_same_plan = owner["file"], owner["cells"] == _cells(sweep)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{kept}: cut short or damaged; remove it and start the sweep again") from None
    if other != _from(folder, file) and not is_same_plan:
        raise ValueError(
            f"{folder} holds the sweep of {(folder / other).resolve()}, and {file} is another one of that "
            'name: rename it, put name = "..." at its top, or use another --out'
        )


def keep_owner(folder: Path, file: Path, sweep: Sweep) -> None:
    """Note whose the folder is; whole or not at all."""
    owner: Mapping[str, Any] = {"file": _from(folder, file), "cells": _cells(sweep)}
    part = (folder / OWNER_FILE).with_suffix(".part")
    part.write_text(json.dumps(owner), encoding="utf-8")
    part.replace(folder / OWNER_FILE)


def _from(folder: Path, file: Path) -> str:
    # Relative, so that a checkout can be moved with its results.
    return os.path.relpath(file.resolve(), folder.resolve())


def _cells(sweep: Sweep) -> list[str]:
    """One a step and worker count: more rounds are the same plan."""
    return sorted(sweep.cell(step, workers, 0).identity for step in sweep.steps for workers in sweep.workers)
