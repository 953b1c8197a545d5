"""What a person reads of a training: where each method got, and how it differs from the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from harness.tables import console_for
from harness.training.statistics import Difference, Estimate, Level


def levels_table(levels: Sequence[Level], title: str) -> Table:
    """The last evaluation of each method, mean +- standard error over seeds."""
    table = _table(title)
    for name in ("workers", "epoch", "seeds", "loss", *levels[0].metrics, "train s"):
        table.add_column(name, justify="right", no_wrap=True)
    for index, level in enumerate(levels):
        following = levels[min(index + 1, len(levels) - 1)]
        table.add_row(
            level.method,
            str(level.num_workers),
            str(level.epoch),
            str(len(level.seeds)),
            estimate(level.loss),
            *(estimate(value) for value in level.metrics.values()),
            f"{level.train_s.mean:.1f}",
            end_section=following.num_workers != level.num_workers,
        )
    return table


def differences_table(differences: Sequence[Difference], title: str) -> Table:
    """Differences of the metrics in thousandths, and users a seed who came out differently."""
    table = _table(title)
    ranked = [difference for difference in differences if difference.hits]
    table.add_column("workers", justify="right", no_wrap=True)
    for name in differences[0].metrics:
        table.add_column(f"{name}\n1e-3", justify="right", no_wrap=True)
    if ranked:
        for rank in ranked[0].hits:
            table.add_column(f"users whose\nhit@{rank} differs", justify="right", no_wrap=True)
        table.add_column("top list\ndiffers", justify="right", no_wrap=True)
    for difference in differences:
        users = [f"{count.mean:.1f}" for count in difference.hits.values()]
        if difference.top_items is not None:
            users.append(f"{difference.top_items.mean:.1f} of {difference.num_users}")
        table.add_row(
            difference.method,
            str(difference.num_workers),
            *(thousandths(value) for value in difference.metrics.values()),
            *users,
        )
    return table


def print_levels(levels: Sequence[Level], title: str) -> None:
    """Print where each method got on stdout."""
    table = levels_table(levels, title)
    console_for(table).print(table)


def print_differences(differences: Sequence[Difference]) -> None:
    """Print the differences on stdout."""
    base = differences[0].base
    table = differences_table(differences, f"differences to {base}, paired by seed, mean ± standard error")
    console_for(table).print(table)


def estimate(value: Estimate) -> str:
    """A mean and, where there are several seeds, its standard error."""
    error = value.standard_error
    return f"{value.mean:.4f}" + ("" if error is None else f" ± {error:.4f}")


def thousandths(value: Estimate) -> str:
    """A difference in units of 1e-3, as papers of the field print it."""
    error = value.standard_error
    # A mean that rounds to zero has no sign.
    return f"{round(1e3 * value.mean, 2) + 0.0:+.2f}" + ("" if error is None else f" ± {1e3 * error:.2f}")


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    return table
