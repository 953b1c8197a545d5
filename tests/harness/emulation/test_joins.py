"""The board of join times, in one process."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch.distributed as dist

from harness.emulation.joins import NUM_SLOTS, JoinBoard, open_board


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def boards(size: int) -> list[JoinBoard]:
    store = dist.HashStore()
    return [open_board(store, rank, size) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 16])
def test_a_collective_has_joined_when_its_last_member_has(folder: Path, size: int) -> None:
    members = boards(size)
    for rank, board in enumerate(members):
        assert board.joined_s(1) is None
        assert board.missing(1) == list(range(rank, size))
        board.stamp(1, 100.0 - rank)
    for board in members:
        assert board.joined_s(1) == 100.0
        assert board.missing(1) == []
        assert board.joined_s(2) is None


def test_some_members_are_enough_for_a_rooted_collective(folder: Path) -> None:
    members = boards(3)
    members[0].stamp(1, 5.0)
    members[2].stamp(1, 4.0)
    assert members[1].joined_s(1) is None
    assert members[1].joined_s(1, [0, 2]) == 5.0
    assert members[1].joined_s(1, [2]) == 4.0
    assert members[1].joined_s(1, [2, 1]) is None
    assert members[1].missing(1) == [1]


def test_a_member_that_is_far_ahead_does_not_hide_the_others(folder: Path) -> None:
    slow, fast = boards(2)
    slow.stamp(1, 7.0)
    for number in range(1, NUM_SLOTS + 2):
        fast.stamp(number, 10.0 + number)
    assert slow.joined_s(1) == 7.0
    assert slow.missing(1) == []
    slow.stamp(1 + NUM_SLOTS, 900.0)
    assert slow.joined_s(1) is None
    assert slow.joined_s(1 + NUM_SLOTS) == 900.0


def test_the_file_has_no_name_once_all_have_opened_it(folder: Path) -> None:
    store = dist.HashStore()
    first = open_board(store, 0, 2)
    assert len(list(folder.iterdir())) == 1
    second = open_board(store, 1, 2)
    assert list(folder.iterdir()) == []
    second.stamp(3, 1.5)
    first.stamp(3, 1.0)
    assert first.joined_s(3) == 1.5


def test_another_machine_is_an_error(folder: Path) -> None:
    store = dist.HashStore()
    open_board(store, 0, 2)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"rank 1 of the group cannot open .* all workers on one machine"):
        open_board(store, 1, 2)
