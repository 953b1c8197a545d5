"""A launch whose workers are there already: torchrun or Slurm started them, this process is one of them."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import click
import torch.distributed as dist

from harness.errors import LaunchError, is_for_user
from harness.place import Place, check_place

Job = TypeVar("Job")
Report = TypeVar("Report")

# A store's value may have 8 MiB.
_CHUNK_BYTES = 1 << 22


def join(
    function: Callable[[Job], Report], job: Job, num_workers: int, place: Place, timeout_s: float
) -> list[Report]:
    """`function(job)` here and on every other worker; on rank 0 their reports in rank order.

    The others hand theirs over and end: rank 0 alone prints and writes. Raises ValueError where the workers
    are not as many as asked for, and at a second launch, for which the others are not there any more;
    LaunchError where this worker fails.
    """
    check_place(place, [num_workers])
    store = _open_store(place, timeout_s)
    if store.add(f"launches-{place.rank}", 1) > 1:
        raise ValueError(
            f"workers that {place.launcher} has started serve one launch: give one seed and one experiment, "
            f"or start `nestpipe` without {place.launcher}"
        )
    os.environ.update(place.environment())
    try:
        report = function(job)
        if place.rank:
            _send(store, place.rank, report)
        else:
            return [report, *(_receive(store, rank) for rank in range(1, num_workers))]
    except Exception as error:
        failure = _explain(error, place)
        if not place.rank:
            raise failure from None
        _print(failure)
        sys.exit(1)
    sys.exit(0)


@cache  # the one that rank 0 holds is the others' server
def _open_store(place: Place, timeout_s: float) -> dist.Store:
    try:
        store = dist.TCPStore(
            place.address,
            place.port,
            is_master=place.rank == 0 and not place.is_store_up,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
            # The default process group finds the same server.
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise LaunchError(
            f"rank {place.rank} of {place.num_workers}: rank 0 is not to be found at "
            f"{place.address}:{place.port} (MASTER_ADDR, MASTER_PORT): {str(error).splitlines()[0]}"
        ) from None
    return dist.PrefixStore("nestpipe-reports", store)


def _send(store: dist.Store, rank: int, report: Any) -> None:
    data = pickle.dumps(report)
    starts = range(0, len(data), _CHUNK_BYTES)
    for index, start in enumerate(starts):
        store.set(f"{rank}-{index}", data[start : start + _CHUNK_BYTES])  # type: ignore[arg-type]
    store.set(f"{rank}-chunks", str(len(starts)))


def _receive(store: dist.Store, rank: int) -> Any:
    num_chunks = int(store.get(f"{rank}-chunks"))
    return pickle.loads(b"".join(store.get(f"{rank}-{index}") for index in range(num_chunks)))


def _explain(error: Exception, place: Place) -> LaunchError:
    described = f"{type(error).__name__}: {error}"
    if is_for_user(described, "".join(traceback.format_tb(error.__traceback__))):
        return LaunchError(f"{error} (rank {place.rank})")
    return LaunchError(f"rank {place.rank} of {place.num_workers}: {described}", traceback.format_exc())


def _print(failure: LaunchError) -> None:
    if failure.traceback:
        click.echo(failure.traceback.rstrip(), err=True)
    click.echo(f"Error: {failure}", err=True)
