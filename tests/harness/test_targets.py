"""What cannot be written is told with the way out, and nothing is left of having asked."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from pathlib import Path

import pytest

from harness.targets import check_file, check_folder, check_target


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    check_file(tmp_path / "new" / "rows.jsonl")
    assert not list((tmp_path / "new").iterdir())
    kept = tmp_path / "rows.jsonl"
    kept.write_text("a line\n")
    check_file(kept)
    assert kept.read_text() == "a line\n"


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "out"
    with pytest.raises(ValueError, match="use another --out") as raised:
        check_file(folder / "rows.jsonl")
    assert f"cannot write into {folder} (Not a directory)" in str(raised.value)


def test_a_folder_that_takes_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*, dir: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    # Permissions do not bind root, and nothing else here is read-only.
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"\(Read-only file system\): make it writable") as raised:
        check_folder(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"rows\.jsonl is a folder.*use another --out"):
        check_file(tmp_path / "rows.jsonl")


def test_a_file_that_cannot_be_added_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A socket, which root cannot write to as a file either; its path must be short.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("rows.jsonl")
        with pytest.raises(ValueError, match=r"cannot write to rows\.jsonl \(.+\): .*another --out"):
            check_file(Path("rows.jsonl"))


def test_a_file_that_is_there_needs_force(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_text("mine")
    with pytest.raises(ValueError, match=r"kept\.json exists; --force overwrites it, or name another file"):
        check_target(file, force=False)
    with pytest.raises(ValueError, match="overwrites it, or go elsewhere"):
        check_target(file, force=False, instead="go elsewhere")
    check_target(file, force=True)
    assert file.read_text() == "mine"


def test_a_new_file_gets_its_folder_and_nothing_else(tmp_path: Path) -> None:
    check_target(tmp_path / "a" / "b" / "new.json", force=False)
    assert list((tmp_path / "a").rglob("*")) == [tmp_path / "a" / "b"]


def test_a_target_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match=r"cannot write into .*file "):
        check_target(file / "new.json", force=True)
    with pytest.raises(ValueError, match="is a folder"):
        check_target(tmp_path, force=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anything
    with pytest.raises(ValueError, match="file cannot be written"):
        check_target(file, force=True)
