"""What the shell offers for an argument that click knows no choices of."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_methods(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Methods that begin so and are not on the line yet, with what they are."""
    from baselines import registry

    given = context.params.get(parameter.name or "") or ()
    summaries = registry.summaries()
    return [
        CompletionItem(name, help=summaries[name])
        for name in registry.names()
        if name.startswith(incomplete) and name not in given
    ]
