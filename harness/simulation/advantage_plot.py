"""A map of advantage as text and as a figure."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table

from harness.simulation.advantage import Advantage


def table_of(found: Advantage, title: str) -> Table:
    """Speedups, the largest y on top; where the method loses, in red."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"{found.y.label}\n  over {found.x.label}", no_wrap=True)
    for value in found.x.values:
        table.add_column(f"\n{value:g}", justify="right", no_wrap=True)
    for value, row in reversed(list(zip(found.y.values, found.speedup, strict=True))):
        table.add_row(f"{value:g}", *(f"[red]{s:.2f}[/red]" if s < 1 else f"{s:.2f}" for s in row))
    return table


def remarks(found: Advantage) -> list[str]:
    """Where it loses and to whom."""
    lost = [
        other
        for speedups, others in zip(found.speedup, found.best_other, strict=True)
        for speedup, other in zip(speedups, others, strict=True)
        if speedup < 1
    ]
    winners = ", ".join(f"{name} ({lost.count(name)})" for name in dict.fromkeys(lost))
    line = f"{found.method} loses at {found.share_lost:.0%} of the points"
    return [line + (f", to {winners}" if winners else "")]


def save_map(found: Advantage, title: str, folder: Path, name: str) -> tuple[Path, Path]:
    """Draw it as `<name>.png` and `<name>.svg`; white is parity, red a loss, a black line the border."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    columns, rows = len(found.x.values), len(found.y.values)
    figure = Figure(figsize=(2.6 + 0.75 * columns, 1.8 + 0.5 * rows), layout="constrained")
    axes = figure.subplots()
    values = [value for row in found.speedup for value in row]
    norm = TwoSlopeNorm(1.0, min(0.9, *values), max(1.1, *values))
    image = axes.imshow(found.speedup, origin="lower", cmap="RdBu", norm=norm, aspect="auto")
    for y, row in enumerate(found.speedup):
        for x, value in enumerate(row):
            is_dark = abs(norm(value) - 0.5) > 0.35
            axes.text(
                x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color="w" if is_dark else "k"
            )
    if min(values) < 1 < max(values):
        axes.contour(found.speedup, levels=[1.0], colors="black", linewidths=1.5)
    axes.set_xticks(range(columns), [f"{value:g}" for value in found.x.values])
    axes.set_yticks(range(rows), [f"{value:g}" for value in found.y.values])
    axes.set_xlabel(found.x.label)
    axes.set_ylabel(found.y.label)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label="speedup over the best other exact method")
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths
