"""A sweep's file: TOML, or a Python file with a function that returns the same as a dict."""

from __future__ import annotations

import inspect
import runpy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.sweep.parsing import parse
from harness.sweep.plan import Sweep

FUNCTION = "sweep"


def load(path: Path) -> Sweep:
    """The sweep that a file describes; a ValueError says what is wrong, where, and how to go on."""
    if not path.is_file():
        raise ValueError(f"no sweep file {path}; give the path of a .toml or .py file, from {Path.cwd()}")
    readers = {".toml": _read_toml, ".py": _run_python}
    if path.suffix not in readers:
        raise ValueError(
            f"{path}: a sweep is a .toml or a .py file, not {path.suffix or 'one without ending'}"
        )
    described = readers[path.suffix](path)
    try:
        return parse(described, path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # a text that is no UTF-8, too
        raise ValueError(f"{path}: not TOML: {error}") from None


def _run_python(path: Path) -> Mapping[str, Any]:
    try:
        function = runpy.run_path(str(path), run_name=path.stem).get(FUNCTION)
        if not inspect.isfunction(function):
            raise ValueError(
                f"write a function {FUNCTION}() that returns a dict, as a TOML file would hold it"
            )
        described = function()
    except Exception as error:  # whatever the user's code does
        raise ValueError(f"{path}: {type(error).__name__}: {error}{_line(error, path)}") from None
    if not isinstance(described, dict):
        raise ValueError(f"{path}: {FUNCTION}() returned {type(described).__name__}, not a dict")
    return described


def _line(error: Exception, path: Path) -> str:
    """The last line of the user's file that the error came through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"
