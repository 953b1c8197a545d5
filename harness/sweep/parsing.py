"""From what a sweep's file holds to a Sweep, with a message for every mistake."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.options import nearest
from harness.sweep.plan import Step, Sweep, Variant

_SHARED = ("workload", "cluster", "set", "method")
_HOW = ("name", "workers", "steps", "warmup", "rounds", "seed", "check", "timeout")
_STEP = ("name", "change", "after", "method", "workload", "cluster", "set", "unset")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def parse(described: Mapping[str, Any], default_name: str) -> Sweep:
    """The sweep that `described` stands for; ValueError for a key or value that is not one."""
    _known(described, (*_HOW, *_SHARED, "step", "grid"), "key")
    if ("step" in described) == ("grid" in described):
        raise ValueError("give either [[step]] entries, each a change on the one before, or one [grid]")
    start = _changed(Variant("", "synthetic", "local"), described, "the file's top")
    steps = tuple(
        _ladder(described["step"], start) if "step" in described else _grid(described["grid"], start)
    )
    _check_steps(steps)
    workers = described.get("workers", 1)
    workers = tuple(workers) if isinstance(workers, list) else (workers,)
    for count in workers:
        _whole({"workers": count}, "workers", 1, 1)
    if not workers or len(set(workers)) < len(workers):
        raise ValueError(f"workers must be whole numbers that differ from each other, got {list(workers)}")
    return Sweep(
        name=_name(described.get("name", default_name)),
        steps=steps,
        workers=workers,
        num_steps=_whole(described, "steps", 30, 1),
        num_warmup_steps=_whole(described, "warmup", 5, 0),
        num_rounds=_whole(described, "rounds", 3, 1),
        seed=_whole(described, "seed", 0, 0),
        check=_is_checked(described.get("check", False)),
        timeout_s=float(_whole(described, "timeout", 120, 1)),
    )


def _ladder(entries: Any, start: Variant) -> Iterator[Step]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries) or not entries:
        raise ValueError("write each step as a [[step]] entry of its own")
    steps: dict[str, Step] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"step {entry.get('name', number)!r}"
        _known(entry, _STEP, f"{where}: key")
        name = _text(entry, "name", where)
        if name in steps:
            raise ValueError(f"two steps are named {name!r}: give one another name")
        before = _before(entry, steps, where)
        base = steps[before].variant if before else start
        variant = _changed(base, entry, where)
        change = _text(entry, "change", where) if "change" in entry else ""
        steps[name] = Step(name, variant, before, change or _change(variant, before, base))
    yield from steps.values()


def _before(entry: Mapping[str, Any], steps: Mapping[str, Step], where: str) -> str | None:
    if "after" not in entry:
        return next(reversed(list(steps)), None)
    after = _text(entry, "after", where)
    if after not in steps:
        hint = nearest(after, steps) if steps else "it is the first step"
        raise ValueError(f"{where}: no step before it is named {after!r}: {hint}")
    return after


def _change(variant: Variant, before: str | None, base: Variant) -> str:
    if before is None:
        return ", ".join([variant.method, *(f"{key}={value}" for key, value in variant.settings)])
    return ", ".join(variant.differences(base))


def _grid(axes: Any, start: Variant) -> Iterator[Step]:
    if not isinstance(axes, dict) or not axes:
        raise ValueError("[grid] needs a list of values for each key, such as micro_batches = [4, 8]")
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"[grid] {key}: expected a list of values, got {values!r}")
    first: Step | None = None
    for point in itertools.product(*axes.values()):
        chosen = dict(zip(axes, point, strict=True))
        own = {key: value for key, value in chosen.items() if key in _SHARED}
        settings = {key: value for key, value in chosen.items() if key not in _SHARED}
        variant = _changed(start, {**own, "set": settings}, "[grid]")
        name = ", ".join([*own.values(), *(f"{key}={_as_text(value)}" for key, value in settings.items())])
        change = name if first is None else ", ".join(variant.differences(first.variant))
        step = Step(name, variant, None if first is None else first.name, change)
        first = first or step
        yield step


def _changed(base: Variant, entry: Mapping[str, Any], where: str) -> Variant:
    """`base` with what an entry says of method, workload, cluster and settings."""
    own = {
        key: _text(entry, key, where) if key in entry else getattr(base, key)
        for key in ("method", "workload", "cluster")
    }
    given, removed = entry.get("set", {}), entry.get("unset", [])
    if not isinstance(given, dict):
        raise ValueError(f"{where}: set needs keys and values, such as set = {{ batch_size = 64 }}")
    if not isinstance(removed, list):
        raise ValueError(f"{where}: unset needs a list of keys, such as unset = ['batch_size']")
    settings = dict(base.settings)
    for key in removed:
        if key not in settings:
            raise ValueError(f"{where}: {key!r} is not set before it: leave it out of unset")
        del settings[key]
    settings |= {key: _as_text(value) for key, value in given.items()}
    return Variant(**own, settings=tuple(sorted(settings.items())))


def _check_steps(steps: Sequence[Step]) -> None:
    seen: dict[Variant, str] = {}
    for step in steps:
        if not step.variant.method:
            raise ValueError(f"step {step.name!r} has no method: say method = 'nestpipe', or another")
        if step.variant in seen:
            raise ValueError(
                f"step {step.name!r} is the same as {seen[step.variant]!r}: leave one of them out"
            )
        seen[step.variant] = step.name


def _known(entry: Mapping[str, Any], known: Iterable[str], kind: str) -> None:
    for key in entry:
        if key not in known:
            hint = "it belongs under [set]" if kind == "key" else "a setting belongs into set = {...}"
            raise ValueError(f"unknown {kind} {key!r}: {nearest(key, known)}; if it is a setting, {hint}")


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} must be a text, got {value!r}")
    return value.strip()


def _as_text(value: Any) -> str:
    """A value as a user types it after `--set key=`."""
    if isinstance(value, list | tuple):
        return ",".join(map(_as_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _whole(described: Mapping[str, Any], key: str, default: int, least: int) -> int:
    value = described.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, got {value!r}")
    return value


def _is_checked(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"check must be true or false, got {value!r}")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"name must be letters, digits, dots, dashes and underscores, for a folder; got {value!r}"
        )
    return value
