"""A progress bar on stderr, drawn only between turns so that it costs no measured step anything."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class StepProgress:
    """Counts steps of all methods of a launch; shows nothing where stderr is not a terminal."""

    def __init__(self, num_steps: int, label: str, *, enabled: bool) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not (enabled and console.is_terminal),
        )
        self._task = self._bar.add_task(label, total=num_steps)

    def __enter__(self) -> StepProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, num_steps: int) -> None:
        """Count steps that are done."""
        self._bar.update(self._task, advance=num_steps, refresh=True)
