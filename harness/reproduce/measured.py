"""What a source of evidence is asked for, and what it answers; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol


@dataclass(frozen=True)
class Run:
    """One method on one profile, with what differs from their defaults."""

    method: str
    profile: str
    profile_overrides: tuple[tuple[str, float], ...] = ()
    """Fields of the profile and their values."""
    settings: tuple[tuple[str, str], ...] = ()
    """Settings of method and workload, as `nestpipe run --set key=value` takes them."""


@dataclass(frozen=True)
class Measured:
    """One run's step in milliseconds: medians over its steps, of the slowest worker."""

    step_ms: float
    lookup_ms: float
    """Exposed, as are the next three; together they are the step."""
    comm_ms: float
    dense_ms: float
    other_ms: float
    """What none of the three explains."""
    total_comm_ms: float
    """The time that the link was busy with rows and their gradients, exposed or not."""
    modelled_step_ms: float
    """What the cost model alone says of the step."""
    modelled_dense_ms: float
    """Dense time of a whole batch in the cost model; in the paper's terms PAPER_DENSE_MS."""
    real_overhead_ms: float
    """Part of the step that no model asked for: measured less modelled."""
    step_samples_ms: tuple[float, ...]
    """Every measured step."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "step_samples_ms":
                value = getattr(self, field.name)
                assert math.isfinite(value), f"{field.name} is {value}"
        assert self.step_ms > 0
        assert self.modelled_step_ms > 0
        assert self.modelled_dense_ms > 0


Measurements = Mapping[Run, Measured]


class Source(Protocol):
    """Where the evidence comes from: emulation now, simulation later."""

    @property
    def evidence(self) -> str:
        """The kind of evidence, as results and figures name it."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """What all its runs share, for the record: steps, real workers, workload."""
        ...

    def measure(self, runs: Sequence[Run]) -> Measurements:
        """A measurement of each run, in as few launches as it takes."""
        ...
