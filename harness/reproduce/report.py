"""From items to everything a reproduction leaves: tables, rows, figures and one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np

from harness import paper
from harness.emulation.profiles import PAPER_DENSE_MS
from harness.reproduce.cells import Cell, make_cells
from harness.reproduce.items import Item
from harness.reproduce.measured import Measured, Measurements, Run, Source
from harness.reproduce.rows import new_reproduction, save
from harness.reproduce.tables import print_item
from harness.summary import WIDE_SPREAD

FEW_STEPS = 10
LARGE_REMAINDER = 0.02
"""Share of a step beyond which an unexplained part is named."""


def reproduce(
    items: Sequence[Item],
    source: Source,
    folder: Path,
    *,
    as_json: bool = False,
    with_figures: bool = True,
) -> list[Cell]:
    """Item by item: measure what it still needs, keep, draw and print it; returns all cells.

    A launch that fails costs the items from its own on; those before are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    references = {item.name: paper.load(item.name) for item in items}
    reproduction = new_reproduction(source)
    measurements: dict[Run, Measured] = {}
    cells: list[Cell] = []
    for item in items:
        needed = [run for run in dict.fromkeys(item.runs) if run not in measurements]
        measured = source.measure(needed) if needed else {}
        assert set(measured) >= set(needed), f"the source did not measure {set(needed) - set(measured)}"
        measurements |= measured
        own = make_cells(item, measurements, references[item.name], source.evidence)
        saved = save(folder, reproduction, own, measured)
        title = f"{item.title} ({source.evidence}, {reproduction.date})"
        remarks = [*references[item.name].notes, *item.notes, *doubts(item, measurements)]
        if with_figures:
            # Importing what draws takes longer than simulating everything.
            from harness.reproduce.plots import save_figure

            remarks.append(f"drawn: {', '.join(map(str, save_figure(item, own, title, folder)))}")
        print_item(f"{item.name}: {title}", own, remarks)
        cells += own
    click.echo(f"milliseconds are scaled to the paper's dense time, {PAPER_DENSE_MS} ms")
    click.echo(f"saved: {', '.join(map(str, saved))}")
    if as_json:
        click.echo(json.dumps({"cells": [cell.as_json() for cell in cells]}, allow_nan=False))
    return cells


def doubts(item: Item, measurements: Measurements) -> Iterator[str]:
    """What a reader should not trust: few steps, a wide spread, a remainder that nothing explains."""
    own = {run: measurements[run] for run in item.runs}
    num_steps = min(len(measured.step_samples_ms) for measured in own.values())
    if num_steps < FEW_STEPS:
        yield f"only {num_steps} steps measured: medians of so few say little"
    wide = [_name(run) for run, measured in own.items() if _spread(measured) > WIDE_SPREAD]
    if wide:
        yield f"p10 to p90 spans more than {WIDE_SPREAD:.0%} of the median: {', '.join(wide)}"
    unexplained = {run: abs(measured.other_ms) / measured.step_ms for run, measured in own.items()}
    worst = max(unexplained, key=lambda run: unexplained[run])
    if unexplained[worst] > LARGE_REMAINDER:
        yield f"up to {unexplained[worst]:.1%} of a step is unexplained: {_name(worst)}"
    overhead = {run: measured.real_overhead_ms / measured.step_ms for run, measured in own.items()}
    most = max(overhead, key=lambda run: overhead[run])
    yield f"real overhead: at most {overhead[most]:.1%} of a step ({_name(most)})"


def _spread(measured: Measured) -> float:
    if not measured.step_samples_ms:
        return 0.0
    p10, p50, p90 = np.percentile(measured.step_samples_ms, [10, 50, 90])
    return float((p90 - p10) / p50)


def _name(run: Run) -> str:
    changes = ", ".join(f"{key}={value}" for key, value in (*run.settings, *run.profile_overrides))
    return f"{run.method} on {run.profile}" + (f" with {changes}" if changes else "")
