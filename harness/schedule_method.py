"""A user's own schedules as methods of a comparison; imports no torch until one is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baselines import registry
from harness.catalog import get_method
from harness.schedule_file import is_file, load_schedule, method_name
from nestpipe.verify import Proof, verify

if TYPE_CHECKING:
    from baselines.interface import Method


def check_schedules(files: Sequence[str], methods: Sequence[str]) -> dict[str, str]:
    """Method name and absolute `FILE[:function]` of each, once it is known that it can run.

    Raises ValueError for one that is not found, is proven to have races or unordered collectives, or whose
    name is taken; a usage error where there is neither a method nor a file.
    """
    if not files and not methods:
        raise click.UsageError("name at least one METHOD, or a --schedule FILE; see `nestpipe list`")
    found: dict[str, str] = {}
    for file in files:
        if not is_file(file):
            raise ValueError(f"--schedule takes a Python file, FILE.py or FILE.py:function, got {file!r}")
        name = method_name(file)
        if name in found or name in registry.names():
            raise ValueError(f"{file} would be a second method {name!r}: rename it, or name a function of it")
        _refuse_hazards(verify(load_schedule(file)), file)
        found[name] = str(Path(file).absolute())
    return found


def find_method(files: Mapping[str, str], name: str) -> Method:
    """The method of that name, from its file where it has one."""
    if name not in files:
        return get_method(name)
    from baselines.engine_methods import BITWISE, REORDERED, EngineMethod
    from baselines.interface import Exactness
    from nestpipe.window import WindowChooser

    schedule = load_schedule(files[name])
    proof = verify(schedule)
    if proof.loss:
        promise = Exactness("approximate", "sync", None)
    elif proof.worst_staleness:
        promise = Exactness(f"stale by {proof.worst_staleness}", "sync", None)
    else:
        promise = REORDERED if schedule.auto or schedule.num_micro_batches > 1 else BITWISE
    num_extra = WindowChooser.num_steps(schedule.look_ahead) if schedule.auto else 0
    return EngineMethod(name, lambda _: schedule, promise, num_extra)


def _refuse_hazards(proof: Proof, file: str) -> None:
    problems = (*proof.buffer_hazards, *proof.collective_order)
    if problems:
        raise ValueError(f"{file} cannot be run safely: {problems[0]} (`nestpipe verify {file}` shows all)")
