"""Prepared data on disk: made once, found again by what it was made from, never half-written.

Each prepared folder has a list of its files with their sizes, modification times and SHA-256 sums. At every
use sizes and times are looked at; where a time differs, the sum decides. A folder that lacks something is
made again from its sources. What changes on the medium without changing a size or a time goes unnoticed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CONTENTS = "contents.json"


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
    one of them. Where `build` fails, nothing stays. A folder that was damaged meanwhile is made again,
    with a warning.
    """
    identity = {"sources": [_identity(path) for path in sources], "settings": dict(settings)}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_dir / kind / digest
    if not _damage(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        damage = _damage(folder)
        if damage:
            if folder.exists():
                warnings.warn(f"{folder} is damaged and made again: {damage}", stacklevel=2)
            _make(folder, identity, build)
    return folder


def _make(folder: Path, identity: Mapping[str, Any], build: Callable[[Path], None]) -> None:
    prefix = f"unfinished-{folder.name}-"
    for left_by_a_killed_process in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_by_a_killed_process)
    with temporary_folder(folder.parent, prefix) as temporary:
        build(temporary)
        files = {path.name: _description(path) for path in sorted(temporary.iterdir())}
        contents = {**identity, "files": files}
        (temporary / _CONTENTS).write_text(json.dumps(contents, indent=1))
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)


@contextmanager
def temporary_folder(parent: Path, prefix: str = "unfinished-") -> Iterator[Path]:
    """A new folder under `parent`, removed at the end unless it was renamed."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _damage(folder: Path) -> str:
    """What a prepared folder lacks, "" for a whole one."""
    try:
        contents = json.loads((folder / _CONTENTS).read_text())
        files = contents["files"]
        retimed = False
        for name, expected in files.items():
            status = (folder / name).stat()
            if status.st_size != expected["size"]:
                return f"{name} has {status.st_size} bytes of {expected['size']}"
            if status.st_mtime_ns != expected["mtime_ns"]:
                if _sha256(folder / name) != expected["sha256"]:
                    return f"{name} has changed"
                expected["mtime_ns"], retimed = status.st_mtime_ns, True
    except (OSError, ValueError, KeyError, TypeError) as error:
        return str(error)
    if retimed:
        # Where the cache cannot be written to, the sum is taken again the next time.
        with contextlib.suppress(OSError):
            _replace(folder / _CONTENTS, json.dumps(contents, indent=1))
    return ""


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(name).replace(path)


def _description(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The system releases the lock when its holder ends, however that happens.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _identity(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"path": str(path.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
