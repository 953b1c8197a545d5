"""Which exceptions are messages to the user, and which are bugs that need their traceback."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

_PACKAGES = ("nestpipe", "baselines", "workloads", "harness")
_FOR_USER = (
    "FetchError",
    "FileExistsError",
    "FileNotFoundError",
    "IsADirectoryError",
    "NotADirectoryError",
    "OSError",
    "PermissionError",
    "ScheduleError",
)


class LaunchError(RuntimeError):
    """A worker failed; the message names the cause, the rank, the exit code and the way out.

    `traceback` is the worker's, empty where the message says all that the user needs.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


def is_for_user(described: str, trace: str) -> bool:
    """Whether an exception, described as `Type: message`, is one for the user to act on.

    That is a file that cannot be had, or a ValueError that the project's own code raised; the frames of
    `trace` tell it from one raised inside a library, which is a bug here.
    """
    kind = described.partition(":")[0].rpartition(".")[2]
    if kind in _FOR_USER:
        return True
    files = re.findall(r'^\s*File "([^"]+)", line \d+', trace, flags=re.MULTILINE)
    root = Path(__file__).resolve().parents[1]
    ours = bool(files) and any(Path(files[-1]).is_relative_to(root / package) for package in _PACKAGES)
    return kind == "ValueError" and ours


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn messages for the user into `Error: ...`; a bug keeps its traceback, a worker's is printed."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except LaunchError as error:
        if error.traceback:
            click.echo(error.traceback.rstrip(), err=True)
        raise click.ClickException(str(error)) from None
    except Exception as error:
        described = f"{type(error).__name__}: {error}"
        if not is_for_user(described, "".join(traceback.format_tb(error.__traceback__))):
            raise
        raise click.ClickException(str(error)) from None
