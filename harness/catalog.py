"""Where the command line finds methods and workloads; each import waits until it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from baselines import registry as methods
from harness.options import nearest

if TYPE_CHECKING:
    from baselines.interface import Method
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
