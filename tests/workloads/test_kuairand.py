"""KuaiRand's raw logs and their reduced form, against a plain reading of the same files."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workloads.batches import rows_of
from workloads import registry, tables
from workloads.sequences import SequenceWorkload

COLUMNS = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
    "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
)
ACTIONS = (
    "is_click is_like is_follow is_comment is_forward is_hate long_view is_profile_enter".split()  # noqa: SIM905
)
REDUCED_DATA = Path(__file__).parents[2].parent / "shared" / "data" / "kuairand_27k_kcore15"


def random_row(generator: random.Random) -> dict[str, int]:
    row = {name: generator.randrange(2) for name in COLUMNS.split(",")}
    row["user_id"] = generator.choice([3, 17, 200_000, 5, 12])
    row["video_id"] = generator.choice([32_017_983, 0, 9, 77, 1_234_567])
    # Few times, so that many rows share one.
    row["time_ms"] = 1_649_000_000_000 + 400 * generator.randrange(12)
    return row


def write(path: Path, rows: list[dict[str, int]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [COLUMNS, *(",".join(str(row[name]) for name in COLUMNS.split(",")) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def create(tmp_path: Path, path: object, **settings: str) -> SequenceWorkload:
    workload = registry.create(
        "kuairand",
        {"path": str(path), **settings},
        seed=1,
        num_workers=2,
        cache_dir=tmp_path / "cache",
    )
    assert isinstance(workload, SequenceWorkload)
    return workload


def histories_as_lists(workload: SequenceWorkload) -> dict[int, list[tuple[int, int, float]]]:
    """By the source's user id: the source's item id, seconds and action weight of each interaction."""
    histories = workload.histories
    lists = {}
    for index, user in enumerate(histories.user_ids.tolist()):
        own = slice(histories.offsets[index], histories.offsets[index + 1])
        items = histories.item_ids[histories.items[own]].tolist()
        actions = histories.actions[own].tolist()
        lists[user] = list(zip(items, histories.timestamps_s[own].tolist(), actions, strict=True))
    return lists


def expected_lists(rows: list[dict[str, int]]) -> dict[int, list[tuple[int, int, float]]]:
    lists: dict[int, list[tuple[int, int, float]]] = {}
    for row in sorted(rows, key=lambda row: (row["user_id"], row["time_ms"])):
        weight = float(sum(row[name] << bit for bit, name in enumerate(ACTIONS)))
        lists.setdefault(row["user_id"], []).append((row["video_id"], row["time_ms"] // 1000, weight))
    return lists


@pytest.mark.parametrize("block_bytes", [250, 1000, 1 << 20])
def test_a_folder_of_standard_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int):
    monkeypatch.setattr(tables.read_chunks, "__defaults__", (None, block_bytes))
    generator = random.Random(1)
    folder = tmp_path / "KuaiRand-27K" / "data"
    names = [
        "log_standard_4_08_to_4_21_27k_part1.csv",
        "log_standard_4_08_to_4_21_27k_part2.csv",
        "log_standard_4_22_to_5_08_27k_part1.csv",
    ]
    parts = [[random_row(generator) for _ in range(num)] for num in (50, 1, 30)]
    for name, rows in reversed(list(zip(names, parts, strict=True))):
        write(folder / name, rows)
    write(folder / "log_random_4_22_to_5_08_27k.csv", [random_row(generator) for _ in range(20)])
    (folder / "user_features_27k.csv").write_text("user_id,other\n1,2\n")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    workload = create(tmp_path, folder.parent)
    assert histories_as_lists(workload) == expected_lists([row for rows in parts for row in rows])
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    listed = create(tmp_path, ", ".join(str(folder / name) for name in names))
    assert histories_as_lists(listed) == histories_as_lists(workload)


def test_the_cache_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = write(tmp_path / "log_standard_1k.csv", [random_row(random.Random(2)) for _ in range(9)])
    first = histories_as_lists(create(tmp_path, log))

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("read again")

    with monkeypatch.context() as patched:
        patched.setattr("workloads.delimited.pa.csv.open_csv", fail)
        assert histories_as_lists(create(tmp_path, log, max_length="3")) == first
    write(log, [random_row(random.Random(2)) for _ in range(11)])
    assert sum(len(rows) for rows in histories_as_lists(create(tmp_path, log)).values()) == 11


def good_lines(num: int) -> list[str]:
    rows = [random_row(random.Random(3)) for _ in range(num)]
    return [COLUMNS, *(",".join(str(row[name]) for name in COLUMNS.split(",")) for row in rows)]


@pytest.mark.parametrize("line", [1, 4])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text.rsplit(",", 1)[0], "18 columns, expected 19"),
        (lambda text: text + ",1", "20 columns, expected 19"),
        (lambda text: text.split(",")[0], "1 columns, expected 19"),
        (lambda text: "x" + text, "user_id is 'x.*', expected an integer"),
        (lambda text: text + ".5", "tab is '.*', expected an integer"),
        (lambda text: text.rsplit(",", 1)[0] + ",", "tab is '', expected an integer"),
        (lambda text: text.replace("1649", "999999991649", 1), "time_ms is '9+1649"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: int, change, expected: str):
    lines = good_lines(6)
    lines[line] = change(lines[line])
    log = tmp_path / "log_standard.csv"
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=rf"log_standard.csv, line {line + 1}: {expected}"):
        create(tmp_path, log)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".npy"]


def test_every_line_too_long(tmp_path: Path):
    lines = good_lines(6)
    log = tmp_path / "log_standard.csv"
    log.write_text("\n".join([lines[0], *(line + ",7" for line in lines[1:])]) + "\n")
    with pytest.raises(ValueError, match="line 2: 20 columns"):
        create(tmp_path, log)


def test_files_that_are_not_logs(tmp_path: Path):
    other = tmp_path / "other.csv"
    other.write_text("user_id,something\n1,2\n")
    with pytest.raises(
        ValueError, match=r"other.csv, line 1: .*expected one of: kuairand-raw.*kuairand-reduced"
    ):
        create(tmp_path, other)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match=r"empty.csv, line 1"):
        create(tmp_path, tmp_path / "empty.csv")
    header_only = tmp_path / "header.csv"
    header_only.write_text(COLUMNS + "\n")
    with pytest.raises(ValueError, match=r"header.csv: no rows"):
        create(tmp_path, header_only)


def test_paths_that_do_not_do(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.csv does not exist"):
        create(tmp_path, tmp_path / "nowhere.csv")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match="no log_standard_"):
        create(tmp_path, empty)
    for size in ("1k", "pure"):
        write(tmp_path / "both" / f"log_standard_4_08_to_4_21_{size}.csv", [random_row(random.Random(1))])
    with pytest.raises(ValueError, match=r"several data sets \(1K, PURE\)"):
        create(tmp_path, tmp_path / "both")


@pytest.fixture(scope="module")
def reduced() -> Path:
    if not REDUCED_DATA.is_dir():
        pytest.skip("the reduced KuaiRand file does not lie beside the repository")
    return REDUCED_DATA


def test_reduced_file(tmp_path: Path, reduced: Path):
    workload = create(tmp_path, reduced)
    histories = workload.histories
    lengths = np.diff(histories.offsets)
    assert (histories.num_users, histories.num_items, len(histories.items)) == (664, 9_359, 41_828)
    assert (lengths.min(), np.median(lengths), lengths.max()) == (16, 44, 614)
    assert histories.item_ids.max() == 32_017_983
    with next(reduced.glob("*.csv")).open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    rows.sort(key=lambda row: (int(row["user_id"]), int(row["time_ms"]), int(row["video_id"])))
    assert histories.item_ids[histories.items].tolist() == [int(row["video_id"]) for row in rows]
    assert histories.timestamps_s.tolist() == [int(row["time_ms"]) // 1000 for row in rows]
    weights = {name: 1 << bit for bit, name in enumerate(ACTIONS)}
    expected = [
        sum(weight for name, weight in weights.items() if row.get(name) == "1")
        + (weights["is_like"] if row["label"] == "1" else weights["is_hate"])
        for row in rows
    ]
    assert histories.actions.tolist() == expected


def test_reduced_file_trains(tmp_path: Path, reduced: Path):
    workload = create(tmp_path, reduced, batch_size="32", max_length="32", num_negatives="32", num_blocks="1")
    model = workload.model(torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _, batch in zip(range(40), workload.batches(rank=0, num_workers=1), strict=False):
        loss, last = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert last.shape == (32, 64)
    assert max(len(row) for row in rows_of(batch.sparse_features, "item")) <= 32
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
