"""Options that several commands have, in one place so that they keep one meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

AS_JSON = click.option("--json", "as_json", is_flag=True, help="End with one line of JSON on stdout.")
SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and batches."
)
DATA_SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of generated and shuffled data."
)
CACHE = click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for fetched and converted data.  [default: the user's cache]",
)
DATA_SETTINGS = click.option(
    "--set",
    "pairs",
    metavar="[WORKLOAD.]KEY=VALUE",
    multiple=True,
    help="A setting of every WORKLOAD that has it, or of the one that is named; see `nestpipe list`.",
)


def settings_option(ending: str = "see `nestpipe list`") -> Decorator:
    """`--set KEY=VALUE`, which may be given several times, as `pairs`."""
    return click.option(
        "--set",
        "pairs",
        metavar="KEY=VALUE",
        multiple=True,
        help=f"A setting of workload, model, methods or optimizers; {ending}.",
    )


def timeout_option(default: int = 120) -> Decorator:
    """`--timeout` in seconds."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=1),
        default=default,
        show_default=True,
        help="Seconds that a worker waits for its peers.",
    )
