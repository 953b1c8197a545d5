"""What a conformance launch is told to do, and what it says; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.catalog import create_workload, get_method
from harness.options import Settings

if TYPE_CHECKING:
    from baselines.interface import Method
    from workloads.interface import Workload

SCHEMA = 1
"""Of the JSON document."""
PASSED, FAILED, SKIPPED, NOT_REACHED = "passed", "failed", "skipped", "not reached"


@dataclass(frozen=True)
class ConformanceJob:
    """Methods to examine one after the other on one workload.

    `find_method` and `make_workload` are functions at the top level of a module, so that they can travel to
    the workers by name.
    """

    methods: tuple[str, ...]
    workload: str
    seed: int
    cache_dir: Path
    settings: Settings = field(default_factory=Settings)
    timeout_s: float = 60.0
    is_one_machine: bool = True
    """Whether all workers share one, as the counting of collectives needs."""
    find_method: Callable[[str], Method] = get_method
    make_workload: Callable[[str, Mapping[str, str], int, int, Path], Workload] = create_workload

    def open_workload(self, num_workers: int) -> Workload:
        """The workload for that many workers; a ValueError or OSError for what the user can mend."""
        return self.make_workload(
            self.workload, self.settings.workload, self.seed, num_workers, self.cache_dir
        )


@dataclass(frozen=True)
class Finding:
    """What a check came to; of several workers the worst."""

    check: str
    verdict: str
    detail: str


@dataclass(frozen=True)
class Examined:
    """All findings about one method, in the order of the checks."""

    method: str
    findings: tuple[Finding, ...]

    @property
    def conforms(self) -> bool:
        """Whether nothing failed and every check was reached."""
        return all(finding.verdict in (PASSED, SKIPPED) for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The documented form of `--json`."""
        return {
            "method": self.method,
            "conforms": self.conforms,
            "checks": [vars(finding).copy() for finding in self.findings],
        }
