"""Where an experiment's figures come from; each source is imported when it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.claims.claim import Wanted

if TYPE_CHECKING:
    from harness.claims.reproduced import Timed
    from harness.reproduce.measured import Run, Source

Place = tuple[str, str]
"""Row and column."""
OTHERS = ("proof", "exactness", "fig6", "clustering")
"""What is no item of `nestpipe reproduce` with step times."""
Values = Mapping[Place, float | None]
"""None where there is no finite value."""


@dataclass(frozen=True)
class Options:
    """What the user says of how to measure."""

    num_workers: int
    """Real processes, where something is emulated."""
    steps: int
    """Measured steps, likewise."""
    folder: Path
    """For what an experiment leaves beside its figures."""
    cache_dir: Path


@dataclass(frozen=True)
class Found:
    """What an experiment brought."""

    values: Values
    settings: Mapping[str, Any]
    """For the record: steps, real workers, workload."""
    seconds: float | None = None
    """What getting it took, where that is not the time since the experiment was asked."""


class Experiment(Protocol):
    """Something that can be asked for figures."""

    def measure(self, places: Sequence[Place]) -> Found:
        """The figures of these places; ValueError or LaunchError where there are none to be had."""
        ...


class Experiments:
    """Every experiment, opened when first asked; those of one kind of evidence share what was measured."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._sources: dict[str, Source] = {}
        # Most items ask for runs that another one has asked for.
        self._runs: dict[str, dict[Run, Timed]] = {}

    def measure(self, wanted: Sequence[Wanted]) -> Found:
        """The figures of claims of one experiment and evidence."""
        [(name, evidence)] = {(each.claim.experiment, each.evidence) for each in wanted}
        places = list(dict.fromkeys((each.claim.row, each.claim.column) for each in wanted))
        return self._find(name, evidence).measure(places)

    def _find(self, name: str, evidence: str) -> Experiment:
        if name in OTHERS:
            return self._other(name)
        from harness.claims.reproduced import Reproduced

        return Reproduced(name, self._source(evidence), self._runs.setdefault(evidence, {}))

    def _source(self, evidence: str) -> Source:
        from harness.reproduce.sources import open_source

        if evidence not in self._sources:
            options = self._options
            self._sources[evidence] = open_source(
                evidence, num_workers=options.num_workers, steps=options.steps
            )
        return self._sources[evidence]

    def _other(self, name: str) -> Experiment:
        options = self._options
        if name == "proof":
            from harness.claims.proof import Proofs

            return Proofs()
        if name == "exactness":
            from harness.claims.exactness import Exactness

            return Exactness(options.cache_dir)
        if name == "fig6":
            from harness.claims.accuracy import Accuracy

            return Accuracy(options.folder / "fig6", options.cache_dir)
        from harness.claims.inflation import Inflation

        return Inflation(options.cache_dir)
