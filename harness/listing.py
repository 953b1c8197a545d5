"""`nestpipe list`: every name that a command takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from baselines import registry as methods
from harness.options import METHOD_HELP, TRAINING_HELP, Training
from harness.tables import console_for
from workloads import registry as workloads

if TYPE_CHECKING:
    from baselines.interface import Exactness

Line = tuple[str, ...]


def print_names() -> None:
    """Print methods with their promises, workloads and models with their settings, and shared settings."""
    _print("methods", ("method", "what it is", "exactness"), _methods())
    for kind in ("workload", "model"):
        _print(f"{kind}s", (kind, "setting", "default", "what it is"), _settings(kind))
    shared = [(name, str(value), TRAINING_HELP[name]) for name, value in vars(Training()).items()]
    own = [(name, "", text) for name, text in (*METHOD_HELP.items(), *_plugin_settings())]
    _print("other settings", ("setting", "default", "what it is"), [*own, *shared])


def _methods() -> Iterator[Line]:
    summaries = methods.summaries()
    for name in methods.names():
        yield name, summaries[name], methods.why_broken(name) or _promise(methods.get(name).exactness)
    for hidden in methods.shadowed():
        yield hidden.name, hidden.summary, hidden.reason


def _plugin_settings() -> Iterator[tuple[str, str]]:
    for name in filter(methods.is_third_party, methods.names()):
        if methods.why_broken(name):
            continue  # the list of methods says so
        for key, setting in methods.get(name).settings.items():
            yield key, f"{setting.meaning} ({name})"


def _promise(exactness: Exactness | None) -> str:
    if exactness is None:
        return "-"
    allowed = "" if exactness.tolerance is None else f" within {exactness.tolerance:g}"
    return f"{exactness.kind} against {exactness.against}{allowed}"


def _settings(kind: str) -> Iterator[Line]:
    for item in workloads.describe():
        if item.kind == kind:
            yield item.name, "", "", item.summary
            for setting in item.settings:
                yield "", setting.name, str(setting.default), setting.meaning


def _print(title: str, columns: Iterable[str], lines: Iterable[Line]) -> None:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for line in lines:
        # Rich would read "[...]" as markup.
        table.add_row(*(cell.replace("[", "\\[") for cell in line))
    console_for(table).print(table)
