"""Methods side by side, as `nestpipe run` measured them: a table, and where each step went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.report import figures
from harness.report.page import Block, Figure, Section, Table, slug
from harness.report.sources import RUN, Invocation, Results
from harness.report.svg import svg_of
from harness.summary import FAILED, MethodRun, Quantiles, Verdict
from harness.tables import Relative, relate

NUM_SHOWN = 8
"""Comparisons in full; earlier ones of a set-up are in the trends alone."""
_NEEDED = (
    "step_ms_p10",
    "step_ms_p50",
    "step_ms_p90",
    "qps",
    "exposed_lookup_ms",
    "exposed_comm_ms",
    "dense_ms",
    "other_ms",
)


def section(results: Results) -> Section | None:
    """The latest comparison of each set-up; None where nothing was compared."""
    latest = {repr((setup_key(each), _line_up(each))): each for each in results.of(RUN)}
    shown = sorted(latest.values(), key=lambda each: each.run_id, reverse=True)
    if not shown:
        return None
    blocks = [block for each in shown[:NUM_SHOWN] for block in _blocks(each)]
    intro = (
        "Times are medians of the slowest worker. Speedup is over the first method at the same number of "
        "workers, efficiency is throughput a worker over that of the method's smallest run. Lookup and comm "
        "are exposed: what the step waited for. A method that failed its check has no speedup."
    )
    if len(shown) > NUM_SHOWN:
        intro += f" {len(shown) - NUM_SHOWN} more set-ups are not shown; name fewer folders to see them."
    return Section("comparison", "Comparison", intro, tuple(blocks))


def setup_key(invocation: Invocation) -> str:
    """Equal for runs that differ at most in methods, workers and the number of steps."""
    names = ("workload", "cluster", "evidence", "settings", "seed")
    return repr([invocation[name] for name in names])


def method_runs(invocation: Invocation) -> tuple[list[MethodRun], list[str]]:
    """What the rows say of each method at each number of workers, and what is wrong with the rows."""
    values: dict[tuple[str, int], dict[str, Any]] = {}
    heads: dict[tuple[str, int], Mapping[str, Any]] = {}
    for row in invocation.rows:
        place = row["method"], row["workers"]
        values.setdefault(place, {})[row["metric"]] = row["value"]
        heads[place] = row
    runs, remarks = [], []
    for (method, workers), own in values.items():
        if any(own.get(name) is None for name in _NEEDED):
            remarks.append(f"{method} at {workers} workers: rows are missing; it is left out")
            continue
        runs.append(_method_run(heads[method, workers], own))
    return runs, remarks


def _method_run(row: Mapping[str, Any], values: Mapping[str, Any]) -> MethodRun:
    loss = values.get("final_loss")
    return MethodRun(
        method=row["method"],
        workers=row["workers"],
        batch_size=row["batch_size"],
        step_ms=Quantiles(values["step_ms_p10"], values["step_ms_p50"], values["step_ms_p90"]),
        qps=values["qps"],
        lookup_ms=values["exposed_lookup_ms"],
        comm_ms=values["exposed_comm_ms"],
        dense_ms=values["dense_ms"],
        other_ms=values["other_ms"],
        loss=[float("nan") if loss is None else loss],
        verdict=Verdict(row["exactness"], max_difference=values.get("max_difference")),
        notes=tuple(
            f"{row['method']} at {row['workers']} workers: {kind} as arbiter, {_difference(values[name])}"
            for kind in ("float64", "ulp")
            if (name := f"max_difference_{kind}") in values
        ),
    )


def _line_up(invocation: Invocation) -> list[tuple[str, int]]:
    return list(dict.fromkeys((row["method"], row["workers"]) for row in invocation.rows))


def _blocks(invocation: Invocation) -> Iterator[Block]:
    runs, remarks = method_runs(invocation)
    label = f"{invocation.about} ({invocation.origin})"
    yield _table(invocation, runs, label, remarks)
    if not runs:
        return
    yield from _breakdowns(invocation, runs, label)
    yield from _scaling(invocation, runs, label)
    yield from _losses(invocation, label)


def _table(invocation: Invocation, runs: Sequence[MethodRun], label: str, remarks: Sequence[str]) -> Table:
    notes = [
        f"{invocation['steps']} measured steps, seed {invocation['seed']}; "
        f"settings: {invocation.changed_settings}",
        *dict.fromkeys(note for run in runs for note in run.notes),
        *remarks,
    ]
    return Table(
        caption=f"{label}, run {invocation.run_id}",
        columns=(
            "method",
            "workers",
            "step ms",
            "p10-p90",
            "QPS",
            "speedup",
            "exactness",
            "efficiency",
            "lookup ms",
            "comm ms",
            "dense ms",
            "other ms",
            "loss",
        ),
        rows=tuple(_row(run, relate(run, runs)) for run in runs),
        notes=tuple(notes),
        words=frozenset({"method", "exactness"}),
        failed=frozenset(index for index, run in enumerate(runs) if run.verdict.kind == FAILED),
    )


def _row(run: MethodRun, relative: Relative) -> tuple[str, ...]:
    verdict = run.verdict
    difference = "" if verdict.max_difference is None else f": {_difference(verdict.max_difference)}"
    return (
        run.method,
        str(run.workers),
        f"{run.step_ms.p50:.2f}",
        f"{run.step_ms.p10:.2f}-{run.step_ms.p90:.2f}",
        f"{run.qps:,.0f}",
        "-" if relative.speedup is None else f"{relative.speedup:.2f}x",
        f"{verdict.kind}{difference}",
        "-" if relative.efficiency is None else f"{relative.efficiency:.2f}",
        *(f"{value:.2f}" for value in (run.lookup_ms, run.comm_ms, run.dense_ms, run.other_ms)),
        f"{run.loss[-1]:.5g}",
    )


def _difference(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.1e}" if value else "0"


def _breakdowns(invocation: Invocation, runs: Sequence[MethodRun], label: str) -> Iterator[Figure]:
    longest = max(run.lookup_ms + run.comm_ms + run.dense_ms + max(run.other_ms, 0.0) for run in runs)
    for workers in dict.fromkeys(run.workers for run in runs):
        own = [run for run in runs if run.workers == workers]
        lines = [
            (run.method, run.step_ms.p50, run.dense_ms, run.comm_ms, run.lookup_ms, run.other_ms)
            for run in own
        ]
        data = pd.DataFrame(lines, columns=["method", "step", *figures.PARTS])
        drawn = figures.breakdown(data, "ms: dense and what was exposed", longest)
        title = f"Breakdown, {_workers(workers)}"
        notes = ("beside a bar the median step, to which the medians of its parts need not add up",)
        yield _figure(drawn, invocation, title, label, "breakdown", workers, notes=notes)


def _scaling(invocation: Invocation, runs: Sequence[MethodRun], label: str) -> Iterator[Figure]:
    if len({run.workers for run in runs}) < 2:
        return
    data = pd.DataFrame(
        {
            "method": [run.method for run in runs],
            "workers": [run.workers for run in runs],
            "qps": [run.qps for run in runs],
            "efficiency": [relate(run, runs).efficiency for run in runs],
        }
    )
    throughput = figures.scaling(data.assign(value=data["qps"]), "samples/s")
    yield _figure(throughput, invocation, "Throughput by workers", label, "qps")
    efficiency = figures.scaling(data.assign(value=data["efficiency"]), "efficiency", is_fraction=True)
    yield _figure(efficiency, invocation, "Scaling efficiency", label, "efficiency")


def _losses(invocation: Invocation, label: str) -> Iterator[Figure]:
    """The loss of each measured step on the largest number of workers, a mean over them."""
    steps = invocation.steps("method", "workers", "loss")
    if not steps:
        return
    workers = max(entry["workers"] for entry in steps)
    ranks: dict[str, list[list[float]]] = {}
    for entry in steps:
        if entry["workers"] == workers:
            losses = [float("nan") if loss is None else loss for loss in entry["loss"]]
            ranks.setdefault(entry["method"], []).append(losses)
    means = {method: np.mean(losses, axis=0) for method, losses in ranks.items()}
    data = pd.concat(
        pd.DataFrame({"method": method, "measured step": np.arange(1, len(loss) + 1), "value": loss})
        for method, loss in means.items()
    )
    drawn = figures.curves(data, "measured step", "loss, mean over the workers")
    first, *others = means.items()
    notes = tuple(
        f"{method}: at most {_difference(float(np.max(np.abs(loss - first[1]))))} from the loss of {first[0]}"
        for method, loss in others
        if len(loss) == len(first[1])
    )
    yield _figure(drawn, invocation, f"Loss, {_workers(workers)}", label, "loss", notes=notes)


def _figure(
    drawn: Any, invocation: Invocation, title: str, label: str, *parts: object, notes: tuple[str, ...] = ()
) -> Figure:
    name = slug("run", invocation.run_id, *parts)
    full = f"{title}: {label}"
    return Figure(name, full, svg_of(drawn, name, full), notes=notes)


def _workers(number: int) -> str:
    return f"{number:,} worker" + ("s" if number != 1 else "")
