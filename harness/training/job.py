"""What a training launch is told to do, as data that travels to its workers; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.catalog import create_workload, get_method
from harness.options import Settings

if TYPE_CHECKING:
    from baselines.interface import Method
    from workloads.interface import Evaluable, Workload


@dataclass(frozen=True)
class TrainingJob:
    """Methods that train on one workload with one seed, one after the other, from equal weights.

    `find_method` and `make_workload` are functions at the top level of a module, so that they can travel to
    the workers by name.
    """

    methods: tuple[str, ...]
    workload: str
    num_epochs: int
    eval_every: int
    """Epochs from one evaluation to the next; the last epoch is always evaluated."""
    seed: int
    cache_dir: Path
    settings: Settings = field(default_factory=Settings)
    timeout_s: float = 120.0
    find_method: Callable[[str], Method] = get_method
    make_workload: Callable[[str, Mapping[str, str], int, int, Path], Workload] = create_workload

    def open_workload(self, num_workers: int) -> Evaluable:
        """The workload for that many workers.

        A ValueError or OSError for what the user can mend; a ValueError for a workload that cannot be
        evaluated.
        """
        from workloads.interface import Evaluable

        workload = self.make_workload(
            self.workload, self.settings.workload, self.seed, num_workers, self.cache_dir
        )
        if not isinstance(workload, Evaluable):
            raise ValueError(
                f"workload {self.workload!r} holds nothing out to evaluate on: use `nestpipe run`, or "
                "another workload, such as movielens"
            )
        return workload

    def found_methods(self) -> dict[str, Method]:
        """The methods by name; ValueError for one that cannot train in the dtype of the settings."""
        methods = {name: self.find_method(name) for name in self.methods}
        if self.settings.training.dtype == "float64":
            lacking = [name for name, method in methods.items() if not method.supports_float64]
            if lacking:
                raise ValueError(f"no float64 in {', '.join(lacking)}: leave out, or use dtype=float32")
        return methods

    def is_evaluated(self, epoch: int) -> bool:
        """Whether epoch number `epoch` (from 1) ends with an evaluation."""
        return epoch % self.eval_every == 0 or epoch == self.num_epochs
