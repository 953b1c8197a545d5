"""About what `nestpipe claims run` will take: known costs, and launches on the emulated cluster rehearsed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.claims.claim import Catalogue, Wanted
from harness.claims.experiments import OTHERS
from harness.claims.reproduced import item_of, narrowed
from harness.claims.run import grouped, name_of
from harness.durations import duration

if TYPE_CHECKING:
    from harness.estimate import Estimate
    from harness.reproduce.items import Item
    from harness.reproduce.measured import Run

Group = Sequence[Wanted]
"""Claims that one experiment answers together."""


def estimate(catalogue: Catalogue, wanted: Sequence[Wanted], num_workers: int, steps: int) -> Iterator[str]:
    """About how long and how much memory: a line an experiment, and one for all of them."""
    groups = grouped(wanted)
    for group in groups:
        count = f"{len(group)} claim{'s' if len(group) > 1 else ''}"
        yield f"{name_of(group)}: {count}, like `{catalogue.cost(group[0]).command}`"
    emulated = [group for group in groups if group[0].evidence == "emulated"]
    others = [group for group in groups if group[0].evidence != "emulated"]
    seconds = sum(catalogue.cost(group[0]).seconds * _share(group) for group in others)
    memory_mb = max((catalogue.cost(group[0]).memory_mb for group in others), default=0.0)
    if emulated:
        yield from _with_emulated(emulated, num_workers, steps, seconds, memory_mb)
    else:
        yield f"estimate: at most about {duration(seconds)} and {memory_mb:.0f} MB on two idle cores"


def _with_emulated(
    groups: Sequence[Group], num_workers: int, steps: int, seconds: float, memory_mb: float
) -> Iterator[str]:
    # It loads torch, as their workers do, which takes longer than what is simulated.
    from harness.estimate import Estimate

    rehearsed, untold = _rehearse(groups, num_workers, steps)
    yield from untold
    yield str(Estimate(seconds, memory_mb * 1e6) + rehearsed)


def _rehearse(groups: Sequence[Group], num_workers: int, steps: int) -> tuple[Estimate, list[str]]:
    """What the launches are expected to take together, no run twice, and why some cannot be had."""
    from harness.estimate import Estimator
    from harness.reproduce.rehearsal import Rehearsal
    from harness.reproduce.sources import EmulatedSource

    rehearsal = Rehearsal(Estimator())
    source = EmulatedSource(rehearsal, num_workers, steps)
    done: set[Run] = set()
    untold = []
    for group in groups:
        runs = [run for run in _narrowed(group).runs if run not in done]
        try:
            source.measure(runs)
        except ValueError as error:
            untold.append(f"{name_of(group)}: not in the estimate: {error}")
        else:
            done |= set(runs)
    return rehearsal.total, untold


def _share(group: Group) -> float:
    """The part of an experiment's runs that these claims need."""
    name = group[0].claim.experiment
    return 1.0 if name in OTHERS else len(_narrowed(group).runs) / len(item_of(name).runs)


def _narrowed(group: Group) -> Item:
    whole = item_of(group[0].claim.experiment)
    return narrowed(whole, [(each.claim.row, each.claim.column) for each in group])
