"""Statistics of several workloads side by side: which, as tables, and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from harness.catalog import create_workload, workload_keys
from harness.options import nearest
from harness.tables import console_for
from workloads.statistics import ALL, QUANTILES, FeatureStatistics, Statistics, describe

SHOWN_MICRO_BATCHES = 8
"""Micro-batches of the comparison table's inflation."""
_SHOWN_QUANTILES = (0.1, 0.5, 0.9, 1.0)

Described = Mapping[str, Statistics]
"""By WORKLOAD[:PRESET] as the user gave it."""


def describe_all(
    names: Sequence[str],
    pairs: Sequence[str],
    *,
    num_batches: int,
    num_workers: int,
    seed: int,
    cache_dir: Path,
) -> Described:
    """Statistics of each WORKLOAD[:PRESET]; ValueError for an unknown name or setting and a repeated one."""
    settings = sort_settings(names, pairs)
    return {
        name: describe(
            create_workload(name.partition(":")[0], own, seed, num_workers, cache_dir),
            num_batches=num_batches,
            num_workers=num_workers,
        )
        for name, own in settings.items()
    }


def sort_settings(names: Sequence[str], pairs: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of each WORKLOAD[:PRESET], from `[WORKLOAD.]KEY=VALUE` strings.

    Without a prefix, a setting goes to every workload that has the key. ValueError for a workload that is
    unknown or given twice, a key that none has, and one that is set twice.
    """
    keys = {name: workload_keys(name.partition(":")[0]) for name in names}
    if len(keys) < len(names):
        raise ValueError(f"each workload once, got {', '.join(names)}")
    settings: dict[str, dict[str, str]] = {
        name: {"preset": preset} if preset else {} for name in names for preset in [name.partition(":")[2]]
    }
    for pair in pairs:
        owner, key, value = _split(pair)
        owners = [name for name in names if owner in ("", name, name.partition(":")[0])]
        if not owners:
            raise ValueError(f"--set {pair}: no such workload here, {nearest(owner, names)}")
        having = [name for name in owners if key in keys[name]]
        if not having:
            known = sorted({known for name in owners for known in keys[name]})
            raise ValueError(f"unknown setting {key!r} of {', '.join(owners)}: {nearest(key, known)}")
        for name in having:
            if key in settings[name]:
                raise ValueError(f"{key} of {name} is given twice")
            settings[name][key] = value
    return settings


def _split(pair: str) -> tuple[str, str, str]:
    """Workload ("" for all), key and value."""
    left, separator, value = pair.partition("=")
    owner, _, key = left.strip().rpartition(".")
    if not separator or not key or not value.strip():
        raise ValueError(f"--set needs [WORKLOAD.]KEY=VALUE, got {pair!r}")
    return owner, key, value.strip()


def print_stats(described: Described) -> None:
    """Print the comparison, the features of each workload that has several, and inflation."""
    _print(_comparison(described))
    for name, found in described.items():
        # The first line is of all features together.
        if len(found.features) > 2:
            _print(_feature_table(name, found))
    _print(_inflation_table(described))


def _comparison(described: Described) -> Table:
    table = _table("a batch, all tables together")
    table.add_column("workload", no_wrap=True)
    _add_numbers(table, ["workers", "samples", *_FEATURE_COLUMNS, *_inflation_columns()])
    for name, found in described.items():
        shown = [level for level in found.inflation if level.num_micro_batches == SHOWN_MICRO_BATCHES]
        inflation = [f"{each:.3f}" for level in shown for each in (level.own_order, level.clustered)]
        cells = [str(found.num_workers), f"{found.num_samples:,}", *_cells(found.features[0])]
        table.add_row(name, *cells, *(inflation or ["-", "-"]))
    return table


def _feature_table(name: str, found: Statistics) -> Table:
    table = _table(f"{name}, each table")
    table.add_column("feature", no_wrap=True)
    _add_numbers(table, _FEATURE_COLUMNS)
    for feature in found.features:
        table.add_row(feature.feature, *_cells(feature), end_section=feature.feature == ALL)
    return table


def _inflation_table(described: Described) -> Table:
    table = _table("inflation: unique keys of all micro-batches / of the batch, as it comes and clustered")
    table.add_column("workload", no_wrap=True)
    table.add_column("order", no_wrap=True)
    counts = sorted({level.num_micro_batches for found in described.values() for level in found.inflation})
    _add_numbers(table, [f"N = {count}" for count in counts])
    for name, found in described.items():
        levels = {level.num_micro_batches: level for level in found.inflation}
        own = [f"{levels[count].own_order:.3f}" if count in levels else "-" for count in counts]
        clustered = [f"{levels[count].clustered:.3f}" if count in levels else "-" for count in counts]
        table.add_row(name, "as it comes", *own)
        table.add_row("", "clustered", *clustered)
    return table


_FEATURE_COLUMNS = (
    *("keys", "unique", "duplicates", "also in next", "top 5 %", "Zipf"),
    f"keys a sample ({', '.join(f'p{100 * q:.0f}' for q in _SHOWN_QUANTILES)})",
)


def _cells(feature: FeatureStatistics) -> list[str]:
    lengths = dict(zip(QUANTILES, feature.length_quantiles, strict=False))
    quantiles = ", ".join(f"{lengths[q]:.0f}" for q in _SHOWN_QUANTILES if q in lengths)
    return [
        f"{feature.num_keys:,.0f}",
        f"{feature.unique_ratio:.1%}",
        f"{feature.duplicates:,.0f}",
        f"{feature.next_overlap:.1%}",
        f"{feature.top_share:.1%}",
        "-" if feature.zipf_exponent is None else f"{feature.zipf_exponent:.2f}",
        f"{feature.mean_length:.1f} ({quantiles})",
    ]


def _inflation_columns() -> list[str]:
    return [f"inflation N = {SHOWN_MICRO_BATCHES}", "clustered"]


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


def _add_numbers(table: Table, names: Iterable[str]) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def _print(table: Table) -> None:
    console_for(table).print(table)
