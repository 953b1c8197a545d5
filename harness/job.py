"""What a launch is told to do, as data that travels to its workers; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.catalog import create_workload, get_method
from harness.emulation.profiles import LOCAL, Profile
from harness.options import Settings

if TYPE_CHECKING:
    from baselines.interface import Method
    from workloads.interface import Workload

NUM_ROUNDS = 3
NUM_SETTLE_STEPS = 2


@dataclass(frozen=True)
class Job:
    """One comparison: methods, workload, how long, and where both come from.

    `find_method` and `make_workload` are functions at the top level of a module, so that they can travel to
    the workers by name.
    """

    methods: tuple[str, ...]
    workload: str
    num_steps: int
    num_warmup_steps: int
    seed: int
    cache_dir: Path
    settings: Settings = field(default_factory=Settings)
    check_exactness: bool = False
    check_freshness: bool = False
    check_bounds: bool = False
    keep_trace: bool = False
    """Send back the events of every op in the measured steps."""
    timeout_s: float = 120.0
    clusters: tuple[Profile, ...] = (LOCAL,)
    """Emulated clusters to measure on, one after the other; LOCAL models nothing."""
    find_method: Callable[[str], Method] = get_method
    make_workload: Callable[[str, Mapping[str, str], int, int, Path], Workload] = create_workload

    def open_workload(self, num_workers: int) -> Workload:
        """The workload for that many workers; a ValueError or OSError for what the user can mend."""
        return self.make_workload(
            self.workload, self.settings.workload, self.seed, num_workers, self.cache_dir
        )

    @property
    def is_emulated(self) -> bool:
        """Whether any part of a step takes a modelled time."""
        return any(cluster.is_modelled for cluster in self.clusters)

    def built_methods(self) -> list[str]:
        """The listed methods, and after them those that an exactness check compares them with."""
        names = dict.fromkeys(self.methods)
        if self.check_exactness:
            for name in self.methods:
                promise = self.find_method(name).exactness
                if promise is not None:
                    names.setdefault(promise.against)
        return list(names)


@dataclass(frozen=True)
class Plan:
    """The rounds of a launch: a warm-up that is dropped whole, then rounds of settling and measured steps.

    In each round every method has one turn. A turn starts with a few steps that are not measured: they
    refill what a pipeline had drained, and bring the method's own data back into the caches.
    """

    num_warmup_steps: int
    num_settle_steps: int
    measured: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        """Training steps that each method runs in all."""
        return self.num_warmup_steps + sum(self.num_settle_steps + steps for steps in self.measured)


def plan_rounds(num_steps: int, num_warmup_steps: int) -> Plan:
    """Split the measured steps over the rounds as evenly as they go, the longer rounds first."""
    num_rounds = min(NUM_ROUNDS, num_steps)
    share, rest = divmod(num_steps, num_rounds)
    measured = tuple(share + (index < rest) for index in range(num_rounds))
    return Plan(num_warmup_steps, NUM_SETTLE_STEPS, measured)
