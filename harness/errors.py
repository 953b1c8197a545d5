"""Which exceptions are messages to the user, and which are bugs that need their traceback."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGES = ("nestpipe", "baselines", "workloads", "harness")
_FOR_USER = (
    "FetchError",
    "FileExistsError",
    "FileNotFoundError",
    "IsADirectoryError",
    "NotADirectoryError",
    "OSError",
    "PermissionError",
)


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
