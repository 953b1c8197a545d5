"""Results as the commands leave them, made without running anything."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.claims import claim
from harness.claims.rows import make_row, new_header
from harness.claims.rows import save as save_claims
from harness.op_trace import traced, write_trace
from harness.report.sources import LADDER_FILE, Invocation
from harness.reproduce import items
from harness.reproduce.report import reproduce
from harness.results import RESULTS_FILE, Row, append
from harness.simulation.costs import Conditions
from harness.simulation.methods import find
from harness.simulation.paper import paper_model
from harness.simulation.predict import steady_timeline
from harness.simulation.source import SimulatedSource
from harness.sweep.journal import SCHEMA, CellRow, Journal, Measurement, Provenance
from harness.sweep.ladder import as_document, ladder
from harness.sweep.plan import Cell, Step, Sweep, Variant
from harness.training.rows import ROWS_FILE as TRAIN_FILE
from harness.training.rows import TrainingRow

METHODS = ("torchrec", "2d-sp", "uniemb", "dbp", "nestpipe")
SIZES = (1, 2, 4, 8, 16)
LOSSES = (0.7, 0.65, 0.62, 0.6)
_COMMIT = "0123456789abcdef0123456789abcdef01234567"


def shared(run_id: str, **changes: Any) -> dict[str, Any]:
    """The fields that all rows of a run share."""
    return {
        "run_id": run_id,
        "time": "2026-11-30T01:02:03+00:00",
        "workload": "synthetic",
        "settings": {"preset": "tiny", "sparse_lr": 0.02, "micro_batches": 8},
        "seed": 0,
        "steps": len(LOSSES),
        "cluster": "local",
        "evidence": "measured",
        "commit": _COMMIT,
        "dirty": False,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "machine": {"cpu": "A processor", "cores": 2, "memory_bytes": 2**34, "os": "Linux"},
        **changes,
    }


def run_rows(
    run_id: str,
    methods: Sequence[str] = METHODS,
    sizes: Sequence[int] = SIZES,
    exactness: str = "library",
    **changes: Any,
) -> Iterator[dict[str, Any]]:
    """Rows of `nestpipe run`: method i of n takes (n - i) parts of 10 ms, and 1 ms a worker more."""
    for workers in sizes:
        for index, method in enumerate(methods):
            step_ms = 10.0 * (len(methods) - index) + workers
            values = {
                "step_ms_p10": 0.9 * step_ms,
                "step_ms_p50": step_ms,
                "step_ms_p90": 1.2 * step_ms,
                "qps": 1e3 * workers * 64 / step_ms,
                "exposed_lookup_ms": 0.25 * step_ms,
                "exposed_comm_ms": 0.125 * step_ms,
                "dense_ms": 0.5 * step_ms,
                "other_ms": 0.125 * step_ms,
                "final_loss": LOSSES[-1],
                "max_difference": 2.5e-7,
            }
            for metric, value in values.items():
                row = Row(
                    **shared(run_id, **changes),
                    method=method,
                    workers=workers,
                    batch_size=64,
                    metric=metric,
                    value=value,
                    unit="",
                    exactness="unchecked" if index == 0 else exactness,
                )
                yield asdict(row)


def write_run(folder: Path, run_id: str, **changes: Any) -> None:
    """A run with its raw steps; the last method's loss is a little off."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(run_rows(run_id, **changes))
    append(folder / RESULTS_FILE, rows)
    places = dict.fromkeys((row["method"], row["workers"]) for row in rows)
    last = rows[-1]["method"]
    append(
        folder / f"steps-{run_id}.jsonl",
        (
            {
                "method": method,
                "workers": workers,
                "rank": rank,
                "step_ms": [1.0] * len(LOSSES),
                "loss": [loss + (2e-3 if method == last else 0.0) for loss in LOSSES],
            }
            for method, workers in places
            for rank in range(2)
        ),
    )


def write_training(folder: Path, run_id: str, seeds: Sequence[int] = (0, 1), num_epochs: int = 3) -> None:
    """A training: the metric of method i with seed s after epoch e is (i + s + e) / 100."""
    folder.mkdir(parents=True, exist_ok=True)
    append(
        folder / TRAIN_FILE,
        (
            asdict(
                TrainingRow(
                    **shared(run_id, seed=seed, workload="movielens"),
                    method=method,
                    workers=2,
                    batch_size=64,
                    epoch=epoch,
                    step=10 * epoch,
                    loss=1.0 / epoch,
                    metric=metric,
                    value=value,
                    unit=unit,
                )
            )
            for seed in seeds
            for index, method in enumerate(("torchrec", "nestpipe"))
            for epoch in range(1, num_epochs + 1)
            for metric, value, unit in (
                ("loss", 1.0 / epoch, ""),
                ("train_s", 2.0, "s"),
                ("hr@10", (index + seed + epoch) / 100, ""),
            )
        ),
    )


def write_reproduction(folder: Path, *names: str) -> None:
    """What `nestpipe reproduce NAME --evidence simulated` leaves, without figures."""
    found = [item for name in names for item in items.get(name)]
    with contextlib.redirect_stdout(io.StringIO()):
        reproduce(found, SimulatedSource(), folder, with_figures=False)


def write_trace_of(path: Path, method: str = "nestpipe", workers: int = 1536, recorded_as: str = "") -> None:
    """A trace as `nestpipe run --trace` writes it, of simulated steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model, found = paper_model(), find(method)
    times = model.times(found.schedule, Conditions(workers))
    events = steady_timeline(found.schedule, times, 3).events()
    write_trace(path, traced(events, method=recorded_as or method, workers=workers, rank=0, batch_size=64))


def write_ladder(folder: Path) -> None:
    """A sweep of three steps in two rounds on 2 workers: 100, 80 and 81 ms, the second round a tenth slower.

    The third step fails in its second round.
    """
    base = Variant("sync", "synthetic", "local")
    variants = {
        "sync": base,
        "overlap": replace(base, method="dbp"),
        "window": replace(base, method="nestpipe"),
    }
    names = list(variants)
    steps = tuple(
        Step(name, variant, names[index - 1] if index else None, f"method={variant.method}")
        for index, (name, variant) in enumerate(variants.items())
    )
    plan = Sweep("ladder", steps, workers=(2,), num_rounds=2)
    step_ms = {"sync": 100.0, "overlap": 80.0, "window": 81.0}
    rows = [
        _cell_row(
            cell, step_ms[step.name] * (1.1 if cell.round else 1.0), step.name == "window" and cell.round == 1
        )
        for step, cell in plan.cells()
    ]
    journal = Journal(folder / "cells.jsonl", rows)
    folder.mkdir(parents=True, exist_ok=True)
    document = as_document(plan, journal, ladder(plan, journal), "measured")
    (folder / LADDER_FILE).write_text(json.dumps(document))


def _cell_row(cell: Cell, step_ms: float, fails: bool) -> CellRow:
    measurement = Measurement(
        batch_size=64,
        step_ms_p10=step_ms,
        step_ms_p50=step_ms,
        step_ms_p90=step_ms,
        qps=1e3 * 128 / step_ms,
        lookup_ms=1.0,
        comm_ms=1.0,
        dense_ms=1.0,
        other_ms=1.0,
        final_loss=0.5,
        exactness="reordered",
        max_difference=1e-7,
        step_ms=(step_ms,),
    )
    return CellRow(
        schema=SCHEMA,
        cell=cell.identity,
        settings=asdict(cell),
        status="failed" if fails else "measured",
        error="Traceback\nLaunchError: rank 1 died" if fails else "",
        measurement=None if fails else measurement,
        seconds=1.0,
        time="2026-11-30T00:00:00+00:00",
        provenance=Provenance(_COMMIT, False, {}, {}),
    )


def write_claims(folder: Path) -> None:
    """Verdicts on simulated speedups: the first claim's figure is the paper's, all others are far off."""
    catalogue = claim.load()
    wanted = catalogue.choose(("speedup-*",), ("simulated",))
    rows = [
        make_row(
            new_header(),
            catalogue,
            each,
            each.claim.paper.value if index == 0 else 99.0,
            settings={},
            seconds=0.5,
            peak_memory_bytes=2**28,
        )
        for index, each in enumerate(wanted)
    ]
    save_claims(folder, rows)


def write_everything(folder: Path) -> None:
    """Five methods at five sizes at two commits, the paper's items, and one of every other kind."""
    write_run(folder / "runs", "20261129T000000Z-000001", commit="f" * 40)
    write_run(folder / "runs", "20261130T000000Z-000002")
    write_training(folder / "train", "20261130T000000Z-000003")
    write_reproduction(folder / "reproduce", "all")
    write_trace_of(folder / "runs" / "trace.jsonl")
    write_ladder(folder / "sweeps" / "ladder")
    write_claims(folder / "claims")


def invocation(rows: Iterator[dict[str, Any]], path: Path = Path("results.jsonl")) -> Invocation:
    """Rows of `nestpipe run` as the report reads them."""
    return Invocation("run", path, tuple(rows))
