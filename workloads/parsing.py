"""Settings as the user types them: strings, parsed by the type of the dataclass field they name."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints


def option(default: Any, meaning: str) -> Any:
    """A dataclass field with a default and one line of help for listings."""
    return dataclasses.field(default=default, metadata={"meaning": meaning})


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that does not exist: the nearest one and all valid ones."""
    valid = sorted(known)
    near = difflib.get_close_matches(name, valid, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"unknown {kind} {name!r}{hint} (valid: {', '.join(valid)})")


def _bool(text: str) -> bool:
    values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return values[text.lower()]


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


def _texts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "an integer"),
    float: (_float, "a finite number"),
    bool: (_bool, "true or false"),
    str: (str, "text"),
    tuple[int, ...]: (_ints, "integers separated by commas"),
    tuple[str, ...]: (_texts, "names separated by commas"),
}


def parse(key: str, text: str, annotation: Any) -> Any:
    """`text` as a value of type `annotation`; ValueError names key, value and what was expected."""
    parser, expected = _PARSERS[annotation]
    try:
        return parser(text.strip())
    except (ValueError, KeyError):
        raise ValueError(f"setting {key}={text!r}: expected {expected}") from None


def parse_into(config_type: type, settings: dict[str, str]) -> dict[str, Any]:
    """The settings that name fields of `config_type`, parsed by the fields' types."""
    hints = get_type_hints(config_type)
    names = [field.name for field in dataclasses.fields(config_type)]
    return {name: parse(name, settings[name], hints[name]) for name in names if name in settings}


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Check one setting: ValueError with key, value and expectation unless `condition` holds."""
    if not condition:
        raise ValueError(f"setting {key}={value}: expected {expected}")


def require_positive(config: object, *names: str) -> None:
    """Check that these settings of `config` are more than 0."""
    for name in names:
        value = getattr(config, name)
        require(value > 0, name, value, "more than 0")
