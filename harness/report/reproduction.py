"""The paper's tables and figures beside ours, and exposed against total communication, as reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from harness.emulation import profiles
from harness.emulation.profiles import PAPER_DENSE_MS
from harness.paper import MARKS, PaperCell
from harness.report import figures
from harness.report.page import Block, Figure, Section, Table, slug
from harness.report.sources import REPRODUCE, Invocation, Results
from harness.report.svg import svg_of
from harness.reproduce import items
from harness.reproduce.cells import Cell
from harness.reproduce.plots import draw
from harness.reproduce.tables import NO_FIGURE, number

_UNIT = "ms of the paper's"


def section(results: Results) -> Section | None:
    """The latest cells of each item and kind of evidence; None where nothing was reproduced."""
    latest: dict[tuple[str, str], tuple[Invocation, list[Mapping[str, Any]]]] = {}
    for each in results.of(REPRODUCE):
        for row in each.rows:
            key = row["item"], each["evidence"]
            if key not in latest or latest[key][0] is not each:
                latest[key] = each, []
            latest[key][1].append(row)
    known = _items()
    blocks: list[Block] = []
    for name in known:
        for (item, _), (invocation, rows) in latest.items():
            if item == name:
                blocks += _blocks(known[name], invocation, rows)
    unknown = sorted({item for item, _ in latest} - set(known))
    if unknown:
        raise ValueError(
            f"reproduced item {unknown[0]!r} is unknown: written by a newer version; update this one, or "
            "leave the folder out"
        )
    if not blocks:
        return None
    intro = (
        f"Milliseconds are scaled so that modelled dense time is the paper's, {PAPER_DENSE_MS} ms. An error "
        "is a signed fraction; with an asterisk the cell is no prediction: the cluster was calibrated on it, "
        "or a declared constant decides it. Diamonds are the paper's figures."
    )
    return Section("paper", "The paper's tables and figures", intro, tuple(blocks))


def communication(results: Results) -> Section | None:
    """Exposed against total communication of the latest reproduction of each kind of evidence."""
    blocks: list[Block] = []
    for evidence in dict.fromkeys(each["evidence"] for each in results.of(REPRODUCE)):
        found = [
            (each, data)
            for each in reversed(results.of(REPRODUCE))
            if each["evidence"] == evidence and len(data := communication_of(each))
        ]
        if found:
            largest = max(found, key=lambda pair: (len(pair[1]), pair[0].run_id))
            blocks += _communication(*largest)
    if not blocks:
        return None
    intro = (
        "Total is the time that the link was busy with rows and their gradients, exposed what the step "
        "waited for. On the dotted line nothing is hidden."
    )
    return Section("communication", "Exposed against total communication", intro, tuple(blocks))


def communication_of(invocation: Invocation) -> pd.DataFrame:
    """Total and exposed communication of each plain run, scaled to the paper's step."""
    names = ("method", "profile", "profile_overrides", "settings", "comm_ms", "total_comm_ms")
    lines = []
    for entry in invocation.steps(*names, "modelled_dense_ms"):
        if entry["profile_overrides"] or entry["settings"]:
            continue
        scale = PAPER_DENSE_MS / entry["modelled_dense_ms"]
        workers = profiles.get(entry["profile"]).num_workers
        lines.append((entry["method"], workers, scale * entry["total_comm_ms"], scale * entry["comm_ms"]))
    data = pd.DataFrame(lines, columns=["method", "workers", "total", "exposed"])
    return data.drop_duplicates(["method", "workers"], keep="last").sort_values("workers", kind="stable")


def _items() -> dict[str, items.Item]:
    return {item.name: item for item in (*items.get("all"), items.ablation())}


def _cell(row: Mapping[str, Any], evidence: str) -> Cell:
    group, _, _ = row["column"].rpartition(":")
    reference = None
    if row["paper"] is not None:
        printed = f"{row['bound']}{row['paper']:.10g}"
        reference = PaperCell(row["row"], row["column"], printed, row["mark"])
    return Cell(
        item=row["item"],
        row=row["row"],
        group=group,
        metric=row["metric"],
        ours=row["ours"],
        ours_modelled=row["ours_modelled"],
        reference=reference,
        evidence=evidence,
    )


def _blocks(item: items.Item, invocation: Invocation, rows: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    label = f"{item.name}: {item.title} ({invocation.origin})"
    notes = [*item.notes]
    missing = {
        (line.row, f"{line.group}:{metric}" if line.group else metric)
        for line in item.lines
        for metric in line.metrics
    }
    missing -= {(row["row"], row["column"]) for row in rows}
    if missing:
        notes.append(f"{len(missing)} cells are missing, so it is not drawn: reproduce it again")
    marks = [mark for mark in MARKS if mark in {row["mark"] for row in rows}]
    if marks:
        notes.append("; ".join(f"[{mark}] {MARKS[mark]}" for mark in marks))
    yield _table(label, rows, notes)
    if not missing:
        name = slug("item", item.name, invocation.run_id)
        drawn = draw(item, [_cell(row, invocation["evidence"]) for row in rows], "")
        drawn.suptitle("")
        yield Figure(name, label, svg_of(drawn, name, label), is_wide=True)


def _table(caption: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Table:
    """A line a row and point of the sweep, four columns a metric; those that would be empty are left out."""
    lines: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["row"], row["column"].rpartition(":")[0]), {})[row["metric"]] = row
    is_swept = any(group for _, group in lines)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    parts = {metric: _parts([row for row in rows if row["metric"] == metric]) for metric in metrics}
    columns = [f"{metric.replace('_', ' ')} {part}" for metric in metrics for part in parts[metric]]
    body = [
        (
            name,
            *([group] if is_swept else []),
            *(_text(by_metric.get(metric), part) for metric in metrics for part in parts[metric]),
        )
        for (name, group), by_metric in lines.items()
    ]
    return Table(caption, ("method", *(["at"] if is_swept else []), *columns), tuple(body), tuple(notes))


def _parts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    is_referenced = any(row["paper"] is not None for row in rows)
    is_modelled = any(row["ours_modelled"] is not None for row in rows)
    return [
        *(["paper"] if is_referenced else []),
        "ours",
        *(["modelled"] if is_modelled else []),
        *(["error"] if is_referenced else []),
    ]


def _text(row: Mapping[str, Any] | None, part: str) -> str:
    if row is None:
        return ""
    if part == "error":
        if row["relative_error"] is None:
            holds = row["bound"] and row["ours"] is not None
            return "holds" if holds else NO_FIGURE
        return f"{row['relative_error']:+.1%}" + ("" if row["held_out"] else "*")
    value = row[{"paper": "paper", "ours": "ours", "modelled": "ours_modelled"}[part]]
    if value is None:
        return NO_FIGURE
    text = number(value, row["metric"])
    return f"{row['bound']}{text} [{row['mark']}]" if part == "paper" else text


def _communication(invocation: Invocation, data: pd.DataFrame) -> Iterator[Block]:
    label = f"Exposed against total communication ({invocation.origin})"
    name = slug("communication", invocation.run_id)
    yield Figure(name, label, svg_of(figures.exposed_against_total(data, _UNIT), name, label))
    hidden = 1 - data["exposed"] / data["total"]
    rows = tuple(
        (str(line.method), f"{line.workers:,}", f"{line.total:.1f}", f"{line.exposed:.1f}", _percent(share))
        for line, share in zip(data.itertuples(), hidden, strict=True)
    )
    yield Table(label, ("method", "workers", "total ms", "exposed ms", "hidden"), rows)


def _percent(share: float) -> str:
    # A share that rounds to zero has no sign.
    return f"{round(share, 3) + 0.0:.1%}" if np.isfinite(share) else NO_FIGURE
