"""A cell: what the paper has at one place of a table or figure, and what we have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.emulation import profiles
from harness.paper import Paper, PaperCell
from harness.reproduce.items import Item, Line
from harness.reproduce.measured import Measurements
from harness.reproduce.metrics import METRICS, Comparison, scale_of

_CALIBRATED = "torchrec"
_LOOKUP_DECLARED = ("uniemb", "nestpipe", "nestpipe-chosen", "nestpipe-unclustered", "nestpipe-2d", "dbp")
_GROUP_DECLARED = ("2d-sp", "nestpipe-2d")


@dataclass(frozen=True)
class Cell:
    """One place of a table or figure."""

    item: str
    row: str
    group: str
    """The part of the column before its colon, such as the number of workers; "" where there is one."""
    metric: str
    ours: float | None
    ours_modelled: float | None
    reference: PaperCell | None
    """None where the paper has no cell: ours is then shown, never reproduced."""
    evidence: str

    @property
    def column(self) -> str:
        """The column's whole name, such as `128:step_ms`."""
        return f"{self.group}:{self.metric}" if self.group else self.metric

    @property
    def relative_error(self) -> float | None:
        """Signed fraction; see `PaperCell.relative_error`."""
        if self.reference is None or self.ours is None:
            return None
        return self.reference.relative_error(self.ours)

    @property
    def held_out(self) -> bool:
        """Whether neither the calibration nor a declared constant has seen this cell."""
        return is_held_out(self.row, self.metric)

    def as_json(self) -> dict[str, Any]:
        """The documented form of `--json`; every number finite, or null."""
        return {
            "item": self.item,
            "row": self.row,
            "column": self.column,
            "paper": None if self.reference is None else self.reference.value,
            "ours": self.ours,
            "ours_modelled": self.ours_modelled,
            "relative_error": self.relative_error,
            "mark": None if self.reference is None else self.reference.mark,
            "evidence": self.evidence,
            "held_out": self.held_out,
        }


def is_held_out(row: str, metric: str) -> bool:
    """False for TorchRec, which the profiles are calibrated on, and where a declared constant decides.

    The constants are the residual lookup of the methods that hide theirs, and the size of a sharding
    group: the communication of 2D methods and everything that follows from it.
    """
    if row == _CALIBRATED:
        return False
    if row in _LOOKUP_DECLARED and metric in ("lookup_ms", "lookup_share", "lookup_removed"):
        return False
    untouched_by_group = ("lookup_ms", "dense_ms", "other_ms")
    return row not in _GROUP_DECLARED or metric in untouched_by_group


def make_cells(item: Item, measurements: Measurements, paper: Paper, evidence: str) -> list[Cell]:
    """Every cell of an item, line by line."""
    return [cell for line in item.lines for cell in _line(item, line, measurements, paper, evidence)]


def _line(item: Item, line: Line, measurements: Measurements, paper: Paper, evidence: str) -> Iterator[Cell]:
    measured = measurements[line.run]
    comparison = Comparison(
        measured=measured,
        num_workers=profiles.get(line.run.profile, dict(line.run.profile_overrides)).num_workers,
        base=measurements[line.base],
        smallest=measurements[line.smallest],
        scale=scale_of(measurements[line.dense_from]),
    )
    for metric in line.metrics:
        value = METRICS[metric](comparison)
        column = f"{line.group}:{metric}" if line.group else metric
        yield Cell(
            item=item.name,
            row=line.row,
            group=line.group,
            metric=metric,
            ours=value.ours,
            ours_modelled=value.modelled,
            reference=paper.get(line.row, column),
            evidence=evidence,
        )
