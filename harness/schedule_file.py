"""Schedules by name, or from a user's own Python file; imports no torch."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.options import nearest
from nestpipe import schedules
from nestpipe.schedule import Schedule

BUILT_IN: Mapping[str, Callable[[], Schedule]] = {
    "sync": schedules.sync,
    "dbp": schedules.dbp,
    "fwp": schedules.fwp,
    "nestpipe": schedules.nestpipe,
    "nestpipe-chosen": schedules.nestpipe_chosen,
    "nestpipe-2d": schedules.nestpipe_2d,
    "uniemb": schedules.uniemb,
}
DEFAULT_FUNCTION = "schedule"


def load_schedule(name_or_file: str) -> Schedule:
    """The schedule of a built-in name, or what a function of a Python file, `FILE[:function]`, returns.

    Without a function's name it is the one called `schedule`, or the only public one that the file
    defines; it is called without arguments. A schedule from a file is named after it: `FILE` without
    folder and ending, with `:function` where that was given. Raises ValueError, which says how to go on.
    """
    if name_or_file in BUILT_IN:
        return BUILT_IN[name_or_file]()
    if not is_file(name_or_file):
        raise ValueError(
            f"unknown schedule {name_or_file!r}: {nearest(name_or_file, BUILT_IN)}; a schedule of your own "
            "is a Python file, given as FILE.py or FILE.py:function"
        )
    path, function_name = _split(name_or_file)
    name = method_name(name_or_file)
    defined = _run(path)
    function_name = function_name or _only_function(path, defined)
    function = defined.get(function_name)
    if not inspect.isfunction(function):
        known = _functions(path, defined)
        raise ValueError(f"{path} defines no function {function_name!r}: {nearest(function_name, known)}")
    return replace(_call(path, function), name=name)


def is_file(name_or_file: str) -> bool:
    """Whether the text means a file and not a name."""
    path, _ = _split(name_or_file)
    return path.suffix == ".py" or len(path.parts) > 1


def method_name(file: str) -> str:
    """What a schedule from `FILE[:function]` is called; the file need not exist."""
    path, function_name = _split(file)
    return f"{path.stem}:{function_name}" if function_name else path.stem


def _split(text: str) -> tuple[Path, str]:
    path, _, function_name = text.rpartition(":")
    return (Path(path), function_name) if path and function_name.isidentifier() else (Path(text), "")


def _run(path: Path) -> dict[str, Any]:
    """What the file defines."""
    if not path.is_file():
        raise ValueError(f"no schedule file {path}; give the path of a Python file, from {Path.cwd()}")
    try:
        return runpy.run_path(str(path), run_name=path.stem)
    except Exception as error:  # whatever the user's code does
        raise ValueError(f"{path} cannot be loaded: {_described(error, path)}") from error


def _functions(path: Path, defined: Mapping[str, Any]) -> list[str]:
    """Public functions that the file itself defines, not those that it imports."""
    return [
        name
        for name, value in defined.items()
        if inspect.isfunction(value) and value.__code__.co_filename == str(path) and name[0] != "_"
    ]


def _only_function(path: Path, defined: Mapping[str, Any]) -> str:
    found = _functions(path, defined)
    if DEFAULT_FUNCTION in found:
        return DEFAULT_FUNCTION
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(
            f"{path} defines no function; write one called {DEFAULT_FUNCTION!r} that returns a Schedule"
        )
    raise ValueError(f"{path} defines {', '.join(found)}; say which one with {path}:{found[0]}")


def _call(path: Path, function: Callable[..., Any]) -> Schedule:
    name = function.__name__
    required = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if required:
        raise ValueError(
            f"{path}:{name} is called without arguments but needs {', '.join(required)}; give them defaults"
        )
    try:
        schedule = function()
    except Exception as error:  # whatever the user's code does
        raise ValueError(f"{path}:{name} failed: {_described(error, path)}") from error
    if not isinstance(schedule, Schedule):
        raise ValueError(
            f"{path}:{name} returned {type(schedule).__name__}, not a Schedule; return one, such as "
            "nestpipe.schedules.nestpipe(4)"
        )
    return schedule


def _described(error: Exception, path: Path) -> str:
    """The error with the last line of the user's file that it came through."""
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f" (line {line})"
    return f"{type(error).__name__}: {error}{where}"
