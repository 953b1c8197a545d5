"""Ladders of `nestpipe sweep`: what each change brought over the step that it builds on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from harness.report import figures
from harness.report.page import Block, Figure, Section, Table, slug, told_apart
from harness.report.sources import Results
from harness.report.svg import svg_of
from harness.summary import FAILED
from harness.sweep.journal import SCHEMA

_COLUMNS = (
    "step",
    "change",
    "workers",
    "step ms",
    "rounds",
    "gain",
    "over the first",
    "verdict",
    "exactness",
)


def section(results: Results) -> Section | None:
    """Every ladder below the folders; None where there are none."""
    labels = told_apart(path.parent for path in results.ladders)
    blocks = [
        block
        for number, path in enumerate(results.ladders, start=1)
        for block in _blocks(path, number, labels[path.parent])
    ]
    if not blocks:
        return None
    intro = (
        "Each step is one change on the step that it builds on, in interleaved rounds: medians, with the "
        "lowest and highest round. A gain is of throughput in the same round; steps that gain nothing stay."
    )
    return Section("ladder", "Ladder", intro, tuple(blocks))


def read_ladder(path: Path) -> Mapping[str, Any]:
    """A sweep's document; ValueError for a damaged file and one of a newer version."""
    try:
        document = json.loads(path.read_bytes())
        schema = document["schema"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path}: cut short or damaged; start the sweep again, which keeps what is measured, or remove it"
        ) from None
    if schema != SCHEMA:
        raise ValueError(
            f"{path}: schema {schema}, of another version than {SCHEMA}, which this one reads; update the "
            "older of the two, or leave the folder out"
        )
    return document


def _blocks(path: Path, number: int, folder: str) -> Iterator[Block]:
    document = read_ladder(path)
    try:
        rungs: Sequence[Mapping[str, Any]] = document["rungs"]
        commit = (document["provenance"] or {}).get("commit", "")[:7] or "unknown"
        name = document["name"]
        # The folder of a sweep has its name, unless somebody has moved it.
        where = folder if PurePosixPath(folder).name == name else f"{name} in {folder}"
        label = f"{where} ({document['evidence']}, {commit})"
        yield _table(rungs, label)
        yield from _figures(rungs, label, slug("ladder", number))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a ladder of `nestpipe sweep` ({error}); remove it to go on") from None


def _table(rungs: Sequence[Mapping[str, Any]], label: str) -> Table:
    rows = tuple(
        (
            rung["step"],
            rung["change"] + (f" (on {rung['base']})" if rung["base"] else ""),
            str(rung["workers"]),
            _spread(rung["step_ms"], "{:.2f}"),
            str(rung["rounds"]),
            _spread(rung["gain"], "{:.3f}x"),
            _spread(rung["total_gain"], "{:.3f}x"),
            rung["verdict"],
            rung["exactness"] or "-",
        )
        for rung in rungs
    )
    return Table(
        label,
        _COLUMNS,
        rows,
        notes=tuple(f"{rung['step']}: {_last_line(rung['error'])}" for rung in rungs if rung["error"]),
        words=frozenset({"step", "change", "verdict", "exactness"}),
        failed=frozenset(
            index for index, rung in enumerate(rungs) if rung["error"] or rung["exactness"] == FAILED
        ),
    )


def _figures(rungs: Sequence[Mapping[str, Any]], label: str, name: str) -> Iterator[Figure]:
    for workers in dict.fromkeys(rung["workers"] for rung in rungs):
        own = [rung for rung in rungs if rung["workers"] == workers and rung["total_gain"]]
        if not own:
            continue
        data = pd.DataFrame([{"step": rung["step"], **rung["total_gain"]} for rung in own])
        full = slug(name, workers)
        title = f"Throughput over the first step, {workers} workers: {label}"
        yield Figure(full, title, svg_of(figures.rungs(data), full, title))


def _spread(spread: Mapping[str, float] | None, form: str) -> str:
    if spread is None:
        return "-"
    middle, low, high = (form.format(spread[name]) for name in ("median", "low", "high"))
    return middle if low == high else f"{middle} ({low}-{high})"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]
