"""Where the command line finds methods and workloads; each import waits until it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baselines import registry as methods
from harness.options import nearest

if TYPE_CHECKING:
    from baselines.interface import Method, MethodSetting
    from workloads.interface import Workload


def get_method(name: str) -> Method:
    """The method of that name."""
    return methods.get(name)


def check_methods(names: tuple[str, ...]) -> None:
    """Fail with the nearest name if one is unknown or given twice; imports no method."""
    known = methods.names()
    for name in names:
        if name not in known:
            raise ValueError(f"unknown method {name!r}: {nearest(name, known)}")
        if names.count(name) > 1:
            raise ValueError(f"method {name!r} is given twice")


def method_settings(names: Sequence[str]) -> dict[str, Callable[[str, str], Any]]:
    """Parsers of the settings that methods of third parties among `names` bring along; imports these.

    Raises ValueError where two of them declare the same key.
    """
    declared: dict[str, tuple[str, MethodSetting]] = {}
    for name in names:
        if methods.is_third_party(name):
            for key, setting in methods.get(name).settings.items():
                other, known = declared.setdefault(key, (name, setting))
                if known != setting:
                    raise ValueError(f"methods {other!r} and {name!r} both declare the setting {key!r}")
    return {key: partial(_parse, setting) for key, (_, setting) in declared.items()}


def _parse(setting: MethodSetting, key: str, text: str) -> Any:
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def create_workload(
    name: str, settings: Mapping[str, str], seed: int, num_workers: int, cache_dir: Path
) -> Workload:
    """The workload of that name for `num_workers` workers."""
    from workloads import registry

    return registry.create(name, settings, seed=seed, num_workers=num_workers, cache_dir=cache_dir)


def workload_keys(name: str) -> list[str]:
    """What can be set on that workload and on the models; ValueError for an unknown workload."""
    from workloads import registry

    descriptions = registry.describe()
    workloads = [item.name for item in descriptions if item.kind == "workload"]
    if name not in workloads:
        raise ValueError(f"unknown workload {name!r}: {nearest(name, workloads)}")
    chosen = [item for item in descriptions if item.kind == "model" or item.name == name]
    return list(dict.fromkeys(setting.name for item in chosen for setting in item.settings))
