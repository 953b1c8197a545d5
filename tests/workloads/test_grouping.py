"""Grouping on disk against a plain sort, with ranges of users much smaller than the log."""

import itertools

import numpy as np
import pytest

from workloads import grouping
from workloads.grouping import write_histories
from workloads.histories import Histories
from workloads.ids import IdCounts
from workloads.npy import NpyWriter, mapped
from workloads.tables import Chunk

INT64 = np.iinfo(np.int64)


def chunk_of(user: list[int], seed: int) -> Chunk:
    generator = np.random.default_rng(seed)
    num = len(user)
    return {
        "user": np.array(user, dtype=np.int64),
        "item": generator.choice([5, 0, 2**40, -7, 2**33 + 1], size=num),
        # Few times, so that most are shared.
        "time": generator.integers(-3000, 3000, size=num),
        "action": generator.random(num, dtype=np.float32),
    }


def expected(chunks: list[Chunk], ties_by_item: bool) -> list[tuple[int, list[tuple[int, int, float]]]]:
    rows = [
        row for chunk in chunks for row in zip(*(column.tolist() for column in chunk.values()), strict=True)
    ]
    rows.sort(key=lambda row: (row[0], row[2], row[1] if ties_by_item else 0))
    users: dict[int, list[tuple[int, int, float]]] = {}
    for user, item, time, action in rows:
        users.setdefault(user, []).append((item, time // 1000, action))
    return list(users.items())


def as_lists(histories: Histories) -> list[tuple[int, list[tuple[int, int, float]]]]:
    items = histories.item_ids[histories.items].tolist()
    rows = list(zip(items, histories.timestamps_s.tolist(), histories.actions.tolist(), strict=True))
    bounds = histories.offsets.tolist()
    parts = [rows[start:end] for start, end in itertools.pairwise(bounds)]
    return list(zip(histories.user_ids.tolist(), parts, strict=True))


MANY_USERS = np.random.default_rng(1).integers(0, 300, size=900).tolist()
USERS = {
    "many": MANY_USERS,
    "ascending": sorted(MANY_USERS),
    "one heavy": [7] * 500 + MANY_USERS[:100],
    "one alone": [7] * 100,
    "extremes": [INT64.max] * 60 + [INT64.min, 0, INT64.max - 1, 2**31] * 20,
    "a single row": [3],
}


@pytest.mark.parametrize("ties_by_item", [False, True])
@pytest.mark.parametrize("users", USERS.values(), ids=USERS)
def test_equals_a_plain_sort(tmp_path, users: list[int], ties_by_item: bool):
    chunks = [chunk_of(users[start : start + 64], seed=start) for start in range(0, len(users), 64)]
    write_histories(chunks, tmp_path, times_a_second=1000, ties_by_item=ties_by_item, range_rows=50)
    histories = Histories.load(tmp_path)
    assert as_lists(histories) == expected(chunks, ties_by_item)
    assert histories.item_ids.tolist() == sorted({int(item) for chunk in chunks for item in chunk["item"]})
    assert {path.suffix for path in tmp_path.iterdir()} == {".npy"}


def test_no_range_is_much_longer_than_asked(tmp_path, monkeypatch: pytest.MonkeyPatch):
    lengths: list[tuple[int, int]] = []
    sort = grouping._ordered

    def counted(records: grouping.Records, ties_by_item: bool) -> grouping.Records:
        lengths.append((len(records), len(set(records["user"].tolist()))))
        return sort(records, ties_by_item)

    monkeypatch.setattr(grouping, "_ordered", counted)
    # Ascending users, whose first chunks say nothing about those that follow, and one heavy user.
    users = [7] * 3000 + [user for user in range(100, 2100) for _ in range(5)]
    write_histories([chunk_of(users, 0)], tmp_path, times_a_second=1, ties_by_item=False, range_rows=1000)
    assert sum(num for num, _ in lengths) == len(users)
    assert all(num <= 1000 or num_users == 1 for num, num_users in lengths)
    assert len(lengths) < 60


def test_failing_source_leaves_nothing(tmp_path):
    def chunks():
        yield chunk_of([1, 2, 3], 0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        write_histories(chunks(), tmp_path, times_a_second=1, ties_by_item=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("least_to_merge", [1, 10, 10_000])
def test_id_counts(monkeypatch: pytest.MonkeyPatch, least_to_merge: int):
    monkeypatch.setattr("workloads.ids._LEAST_TO_MERGE", least_to_merge)
    counts = IdCounts()
    assert [array.tolist() for array in counts.result()] == [[], []]
    parts = [np.random.default_rng(seed).integers(-9, 2**35, size=20) // 2**31 for seed in range(9)]
    for part in [*parts, np.zeros(0, np.int64)]:
        counts.add(part)
    ids, numbers = np.unique(np.concatenate(parts), return_counts=True)
    assert [array.tolist() for array in counts.result()] == [ids.tolist(), numbers.tolist()]


@pytest.mark.parametrize("lengths", [[], [0], [3, 0, 2]])
@pytest.mark.parametrize("row_shape", [(), (4,)])
def test_npy_writer(tmp_path, lengths: list[int], row_shape: tuple[int, ...]):
    parts = [np.random.default_rng(num).integers(0, 9, size=(num, *row_shape)) for num in lengths]
    with NpyWriter(tmp_path / "a.npy", np.uint32, row_shape) as writer:
        for part in parts:
            writer.append(part)
    whole = np.concatenate([np.zeros((0, *row_shape), np.int64), *parts])
    loaded = mapped(tmp_path / "a.npy")
    assert loaded.dtype == np.uint32
    assert loaded.tolist() == whole.tolist()
