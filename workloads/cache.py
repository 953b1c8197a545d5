"""Prepared data on disk: made once, found again by what it was made from, never half-written."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/nestpipe`, or `~/.cache/nestpipe` where that is not set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nestpipe"


def prepared(
    cache_dir: Path,
    kind: str,
    sources: Sequence[Path],
    settings: Mapping[str, Any],
    build: Callable[[Path], None],
) -> Path:
    """The folder that `build(folder)` fills from `sources`, made at the first call.

    It is found again as long as every source has the same path, size and modification time, and the
    `settings` (a format version among them) are equal. Processes that ask at the same time wait for
    one of them. Where `build` fails, nothing stays.
    """
    identity = {"sources": [_identity(path) for path in sources], "settings": dict(settings)}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_dir / kind / digest
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with temporary_folder(folder.parent) as temporary:
                build(temporary)
                (temporary / "identity.json").write_text(json.dumps(identity, indent=1))
                temporary.rename(folder)
    return folder


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder under `parent`, removed at the end unless it was renamed."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="unfinished-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The system releases the lock when its holder ends, however that happens.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _identity(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"path": str(path.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
