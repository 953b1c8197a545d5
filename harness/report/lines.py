"""Strict reading of result files: a line that is not what it should be is named, with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any

# Annotations of the row classes; bool is no number here, though Python says so.
_FORMS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, NoneType),
    "int": (int,),
    "int | None": (int, NoneType),
    "bool": (bool,),
    "float": (float, int),
    "float | None": (float, int, NoneType),
    "Mapping[str, Any]": (dict,),
    "Mapping[str, str]": (dict,),
}


def read_rows(path: Path, row: type) -> list[dict[str, Any]]:
    """All lines of a file whose lines are the dataclass `row` as JSON.

    ValueError with file, line and the way out for a line that was cut short, one of a newer version and one
    that is something else.
    """
    return [_checked(entry, row, where) for where, entry in objects(path)]


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every line's object, with where it stands; ValueError for a line that is none. Skips empty lines."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                entry = json.loads(line)
            except ValueError:  # bytes that are no text, too
                raise ValueError(
                    f"{where}: cut short or damaged, not a line of JSON; remove the line to go on"
                ) from None
            if not isinstance(entry, dict):
                raise ValueError(
                    f"{where}: an object was expected, not {str(entry)[:40]!r}; remove the line to go on"
                )
            yield where, entry


def _checked(entry: dict[str, Any], row: type, where: str) -> dict[str, Any]:
    known = {field.name: field for field in fields(row)}
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise ValueError(
            f"{where}: field {unknown[0]!r} is unknown: written by a newer version; update this one, "
            "or leave the folder out"
        )
    for name, field in known.items():
        if name not in entry:
            if field.default is MISSING and field.default_factory is MISSING:
                raise ValueError(
                    f"{where}: field {name!r} is missing: written by an older version or by something else; "
                    "remove the line, or leave the folder out"
                )
            continue
        forms = _FORMS.get(str(field.type), (object,))
        value = entry[name]
        if not isinstance(value, forms) or (isinstance(value, bool) and bool not in forms):
            raise ValueError(
                f"{where}: field {name!r} cannot be {str(value)[:40]!r}; remove the line to go on"
            )
    return entry
