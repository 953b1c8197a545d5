"""`nestpipe kick-the-tires`: every part of the suite once, each as the command that a user would type."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich import box
from rich.table import Table

from harness.claims.stages import Arguments, Stage
from harness.tables import console_for

PASSED, FAILED = "passed", "FAILED"
TIMEOUT_S = 300.0
"""For one command: more than any takes on a machine that is worth measuring on."""
GRACE_S = 15.0
"""For a command to end its workers."""
NUM_TAIL_LINES = 15
_PROGRAM = "from harness.cli import main; main(prog_name='nestpipe')"


@dataclass(frozen=True)
class Result:
    """How a stage came out."""

    stage: Stage
    seconds: float
    failed: Arguments | None = None
    """The command that ended the stage."""
    reason: str = ""
    tail: str = ""
    """The end of what that command printed."""

    @property
    def verdict(self) -> str:
        """In a word."""
        return PASSED if self.failed is None else FAILED

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "stage": self.stage.name,
            "verdict": self.verdict,
            "seconds": self.seconds,
            "commands": [typed(command) for command in self.stage.commands],
            "reason": self.reason,
        }


def typed(command: Arguments) -> str:
    """The command as a user would type it."""
    return shlex.join(("nestpipe", *command))


def walk(tour: Sequence[Stage], folder: Path) -> Iterator[Result]:
    """Run stage after stage; a stage that fails does not keep the next one from running.

    What a stage prints goes to `folder/<stage>.log`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stage in tour:
        for path, text in stage.files.items():
            path.write_text(text, encoding="utf-8")
        yield _run(stage, folder / f"{stage.name.replace(' ', '-')}.log")


def _run(stage: Stage, log: Path) -> Result:
    start = time.perf_counter()
    for command in stage.commands:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {typed(command)}\n")
            file.flush()
            reason = _execute(command, file.fileno())
        if reason:
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_TAIL_LINES:]
            return Result(stage, time.perf_counter() - start, command, reason, "\n".join(tail))
    return Result(stage, time.perf_counter() - start)


def _execute(command: Arguments, output: int) -> str:
    """Why the command failed; "" where it did not."""
    with _told_to_end():
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"took longer than {TIMEOUT_S:.0f} s"
        except BaseException:
            _end(process)
            raise
    return "" if code == 0 else f"exit code {code}"


@contextmanager
def _told_to_end() -> Iterator[None]:
    """Let SIGTERM unwind the stack, which ends the command that is running."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command; torchrun ends its workers on SIGTERM, and could not on SIGKILL."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def print_summary(results: Sequence[Result]) -> None:
    """Print a line a stage, and the sum."""
    table = Table(title="kick the tires", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("commands", no_wrap=True)
    for result in results:
        first, *others = (typed(command) for command in result.stage.commands)
        more = f" (and {len(others)} more)" if others else ""
        told = result.verdict + (f": {result.reason}" if result.reason else "")
        # Rich would read "[...]" as markup.
        table.add_row(result.stage.name, told, f"{result.seconds:.1f}", (first + more).replace("[", "\\["))
    num_passed = sum(result.failed is None for result in results)
    total = sum(result.seconds for result in results)
    table.add_section()
    table.add_row("all", f"{num_passed} of {len(results)} passed", f"{total:.1f}", "")
    console_for(table).print(table)
