"""The named schedules, each one line of directives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from nestpipe.averaging import average_replicas
from nestpipe.schedule import Schedule, overlap_batches, split_window, synchronous

Cuts = int | Sequence[int] | Literal["auto"]

# What a schedule that chooses its window chooses from.
CANDIDATE_CUTS: tuple[tuple[int, ...], ...] = (
    (1,),
    (1, 1),
    (1, 1, 1, 1),
    (1,) * 8,
    (1, 2, 2, 1),
    (1, 2, 4, 4, 2, 1),
    (1, 2, 4, 4, 4, 4, 2, 1),
)
# Measured costs are noisy; a split must promise at least this share of the step to be worth it.
MIN_GAIN = 0.02


def sync() -> Schedule:
    """Nothing overlapped."""
    return synchronous()


def dbp() -> Schedule:
    """Dual-buffer pipelining alone."""
    return overlap_batches(synchronous())


def fwp(micro_batches: Cuts = 8) -> Schedule:
    """Frozen-window pipelining alone."""
    return split_window(synchronous(), micro_batches)


def nestpipe(micro_batches: Cuts = 8) -> Schedule:
    """Both: the paper's system with its default window of eight micro-batches."""
    return split_window(overlap_batches(synchronous()), micro_batches)


def nestpipe_chosen() -> Schedule:
    """Both, with the window chosen from measured costs."""
    return replace(nestpipe("auto"), name="nestpipe-chosen")


def nestpipe_2d(micro_batches: Cuts = 8) -> Schedule:
    """Both, in groups of workers whose tables are averaged at the end of every step.

    For simulating and proving: the pipeline adds the averaging itself where it has replicas.
    """
    return average_replicas(nestpipe(micro_batches))


def uniemb() -> Schedule:
    """Overlap without the dual-buffer synchronisation: rows exactly one step stale."""
    return overlap_batches(synchronous(), fresh=False)
