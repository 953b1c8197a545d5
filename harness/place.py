"""Which of several workers that torchrun or Slurm has started this process is; nothing else reads that."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

OF_SEVERAL_LAUNCHES = ("sweep", "reproduce", "ablate", "claims", "regress", "kick-the-tires")
"""Commands for whose second launch workers that somebody else has started would not be there any more."""


@dataclass(frozen=True)
class Place:
    """One worker among several that somebody else has started."""

    launcher: str
    """"torchrun" (or whoever sets the same variables) or "Slurm"."""
    rank: int
    num_workers: int
    local_rank: int
    address: str
    """Where rank 0 listens; empty where nothing says so."""
    port: int
    is_store_up: bool = False
    """Whether the launcher itself listens there."""
    is_one_machine: bool = True

    def environment(self) -> dict[str, str]:
        """The variables that `torch.distributed` reads."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.num_workers),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place that the variables of torchrun, else those of a Slurm step, describe; None without any.

    A batch script has Slurm's variables too, but runs once: only what `srun` starts as several tasks has
    peers. Raises ValueError for a number that is none.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    return _of_slurm(environment)


def default_worker_count() -> str:
    """What `--workers` is where it is not given: as many as there are, or one."""
    place = _own_place()
    return "1" if place is None else str(place.num_workers)


def check_place(place: Place | None, worker_counts: Sequence[int], *, is_emulated: bool = False) -> None:
    """Raise ValueError where workers that are there already cannot run what was asked for."""
    if place is None:
        return
    if list(worker_counts) != [place.num_workers]:
        asked = ",".join(map(str, worker_counts))
        raise ValueError(
            f"--workers {asked} does not fit: {place.launcher} has started {place.num_workers} of them, "
            f"which `nestpipe` joins; leave --workers out, or start it without {place.launcher}"
        )
    if not place.address or not place.port:
        raise ValueError(
            f"{place.launcher} has started {place.num_workers} workers, but nothing says where they meet: "
            "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port of it"
        )
    if is_emulated and not place.is_one_machine:
        raise ValueError("the workers of an emulated cluster share memory: start all of them on one machine")


class Program(click.Group):
    """A command whose process may be one of several workers."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's; a usage error for a command that starts workers of its own, where some are already."""
        name, command, rest = super().resolve_command(ctx, args)
        place = _own_place()
        if place is not None and name in OF_SEVERAL_LAUNCHES:
            raise click.UsageError(
                f"{name} starts workers of its own, launch after launch: start it once, without "
                f"{place.launcher}",
                ctx,
            )
        return name, command, rest

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As click's; of several workers rank 0 alone prints on stdout.

        Such a worker ends at once, with its exit code and without gloo's threads, which now and then abort
        an interpreter that exits the ordinary way.
        """
        place = _own_place()
        if place is None:
            return super().main(*args, **kwargs)
        code = 1
        try:
            with _silence() if place.rank else nullcontext():
                super().main(*args, **kwargs)
        except SystemExit as end:
            code = _exit_code(end)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _own_place() -> Place | None:
    try:
        return find_place(os.environ)
    except ValueError:
        return None  # `check_place`'s callers say what is wrong


@contextmanager
def _silence() -> Iterator[None]:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _of_torchrun(environment: Mapping[str, str]) -> Place:
    num_workers = _number(environment, "WORLD_SIZE")
    return Place(
        launcher="torchrun",
        rank=_number(environment, "RANK"),
        num_workers=num_workers,
        local_rank=_number(environment, "LOCAL_RANK"),
        address=environment.get("MASTER_ADDR", ""),
        port=_number(environment, "MASTER_PORT"),
        is_store_up=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        is_one_machine=_number(environment, "LOCAL_WORLD_SIZE", num_workers) == num_workers,
    )


def _of_slurm(environment: Mapping[str, str]) -> Place | None:
    is_batch_script = "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment
    if "SLURM_PROCID" not in environment or is_batch_script:
        return None
    num_tasks = _number(environment, "SLURM_NTASKS", 1)
    num_workers = _number(environment, "SLURM_STEP_NUM_TASKS", num_tasks)
    if num_workers == 1:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    num_nodes = _number(environment, "SLURM_NNODES", 1)
    # Below the ports that a kernel gives away by itself, and another one for each step.
    job, step = _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID")
    return Place(
        launcher="Slurm",
        rank=_number(environment, "SLURM_PROCID"),
        num_workers=num_workers,
        local_rank=_number(environment, "SLURM_LOCALID"),
        address=environment.get("MASTER_ADDR") or first_host(nodes),
        port=_number(environment, "MASTER_PORT", 15_000 + (job + 31 * step) % 15_000),
        is_one_machine=_number(environment, "SLURM_STEP_NUM_NODES", num_nodes) == 1,
    )


def first_host(nodes: str) -> str:
    """The first host of Slurm's short form of a list, `gpu[003-007,010],cpu1`: task 0's."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group())


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"the environment variable {name} must be a whole number, got {text!r}")
    return int(text)
