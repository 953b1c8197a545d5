"""Prepared data is made once, found again, and never half-written."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workloads.cache import default_cache_dir, prepared


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("one")
    return path


class Builder:
    """Counts its calls and copies the source."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.num_calls = 0

    def __call__(self, folder: Path) -> None:
        self.num_calls += 1
        (folder / "copy.txt").write_text(self.source.read_text())


def test_found_again_until_the_source_or_a_setting_changes(tmp_path: Path, source: Path):
    cache, build = tmp_path / "cache", Builder(source)
    first = prepared(cache, "kind", [source], {"version": 1}, build)
    assert prepared(cache, "kind", [source], {"version": 1}, build) == first
    assert build.num_calls == 1
    other = prepared(cache, "kind", [source], {"version": 2}, build)
    source.write_text("three")
    changed = prepared(cache, "kind", [source], {"version": 1}, build)
    status = source.stat()
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    touched = prepared(cache, "kind", [source], {"version": 1}, build)
    assert len({first, other, changed, touched}) == 4
    assert build.num_calls == 4
    assert (first / "copy.txt").read_text() == "one"
    assert (changed / "copy.txt").read_text() == "three"
    assert set(source.parent.iterdir()) == {source, cache}


def test_failure_leaves_nothing(tmp_path: Path, source: Path):
    def fail(folder: Path) -> None:
        (folder / "part.npy").write_text("half")
        raise ValueError("broken")

    cache = tmp_path / "cache"
    with pytest.raises(ValueError, match="broken"):
        prepared(cache, "kind", [source], {}, fail)
    assert [path for path in cache.rglob("*") if path.suffix != ".lock"] == [cache / "kind"]
    assert (prepared(cache, "kind", [source], {}, Builder(source)) / "copy.txt").exists()


def test_one_of_many_builds(tmp_path: Path, source: Path):
    build, found = Builder(source), []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait(timeout=10)
        found.append(prepared(tmp_path / "cache", "kind", [source], {}, build))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert build.num_calls == 1


def test_default_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "nestpipe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "nestpipe"


def test_copied_cache_is_checked_once(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch):
    build = Builder(source)
    folder = prepared(tmp_path / "cache", "kind", [source], {}, build)
    os.utime(folder / "copy.txt", ns=(1, 1))
    assert prepared(tmp_path / "cache", "kind", [source], {}, build) == folder
    # The new time is written down, so that nothing has to be summed up any more.
    monkeypatch.setattr("workloads.cache._sha256", lambda path: "other")
    assert prepared(tmp_path / "cache", "kind", [source], {}, build) == folder
    assert build.num_calls == 1


def test_what_a_killed_process_left_is_removed(tmp_path: Path, source: Path):
    code = """
import os, sys
from pathlib import Path
from workloads.cache import prepared

def die(folder: Path) -> None:
    (folder / "part.npy").write_text("half")
    os._exit(9)

prepared(Path(sys.argv[1]), "kind", [Path(sys.argv[2])], {}, die)
"""
    cache = tmp_path / "cache"
    done = subprocess.run([sys.executable, "-c", code, str(cache), str(source)], timeout=60, check=False)
    assert done.returncode == 9
    assert len(list(cache.rglob("part.npy"))) == 1
    prepared(cache, "kind", [source], {}, Builder(source))
    assert not list(cache.rglob("*.npy"))
    assert not list(cache.rglob("unfinished-*"))
