"""Side features of KuaiRand's users and videos against a plain reading of the same files."""

import csv
import random
from pathlib import Path

import pytest
import torch

from tests.workloads.batches import rows_of
from tests.workloads.test_kuairand import create, random_row, write
from workloads import kuairand_sides

USER_HEADER = "user_id,user_active_degree,is_live_streamer,follow_user_num,follow_user_num_range,onehot_feat3"
VIDEO_HEADER = "video_id,author_id,video_type,upload_dt,music_id,tag"
SIDES = "user_active_degree,onehot_feat3,follow_user_num_range,author_id,tag,music_id"

# A user (12) and a video (77) of the log that the files do not have, and others that the log does not have.
USERS = """\
3,full_active,0,5,"(0,10]",1153
17,high_active,1,700,500+,
99999,low_active,0,0,0,7
200000,full_active,0,5,"(0,10]",0
5,,0,5,"(10,50]",1153
"""
VIDEOS = """\
1,1,AD,2020-01-01,,1
32017983,8839734,NORMAL,2020-07-08,9480000001,"12,65"
0,441,NORMAL,2020-07-08,9480000002,12
9,441,NORMAL,,9480000001.0,
1234567,0,UNKNOWN,2020-07-08,,"65,12"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "KuaiRand-1K" / "data"
    generator = random.Random(1)
    for part in ("4_08_to_4_21", "4_22_to_5_08"):
        write(data / f"log_standard_{part}_1k.csv", [random_row(generator) for _ in range(60)])
    (data / "user_features_1k.csv").write_text(f"{USER_HEADER}\n{USERS}")
    (data / "video_features_basic_1k.csv").write_text(f"{VIDEO_HEADER}\n{VIDEOS}")
    return data


def values_by_id(text: str, header: str, name: str) -> dict[int, str]:
    rows = csv.DictReader([header, *text.splitlines()])
    found = {int(next(iter(row.values()))): row[name] for row in rows}
    return {
        key: value.split(",")[0] if name == "tag" else value.removesuffix(".0")
        for key, value in found.items()
    }


@pytest.mark.parametrize("block_bytes", [120, 1 << 20])
def test_keys_are_equal_where_values_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
):
    monkeypatch.setattr("workloads.delimited.read_blocks.__defaults__", (block_bytes,))
    workload = create(tmp_path, folder.parent, side_features=SIDES, batch_size="5")
    histories = workload.histories
    batch = next(workload.batches(rank=0, num_workers=1))
    assert batch.sparse_features.keys() == ["item", "negative", *SIDES.split(",")]
    users = histories.user_ids[batch.sample_ids.numpy()].tolist()
    videos = [histories.item_ids[items].tolist() for items in rows_of(batch.sparse_features, "item")]
    model = workload.model(torch.device("cpu"))
    tables = {n.split(".")[-2]: p.shape[0] for n, p in model.named_parameters() if "embeddings." in n}
    for name in SIDES.split(","):
        of_user = name in kuairand_sides.USER_FEATURES
        known = (
            values_by_id(USERS, USER_HEADER, name) if of_user else values_by_id(VIDEOS, VIDEO_HEADER, name)
        )
        ids = [[user] for user in users] if of_user else videos
        keys: dict[str, int] = {}
        for own_ids, own_keys in zip(ids, rows_of(batch.sparse_features, name), strict=True):
            for one, key in zip(own_ids, own_keys, strict=True):
                value = known.get(one, "")
                assert (key == 0) == (value == "")
                assert keys.setdefault(value, key) == key
        assert len(set(keys.values())) == len(keys)
        assert tables[name] == max(keys.values()) + 1
    loss, _ = model(batch)
    loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "embeddings." in n)


def test_without_the_setting_no_file_is_needed(folder: Path, tmp_path: Path):
    (folder / "user_features_1k.csv").unlink()
    batch = next(create(tmp_path, folder).batches(rank=0, num_workers=1))
    assert batch.sparse_features.keys() == ["item", "negative"]
    with pytest.raises(FileNotFoundError, match=r"holds 0 files user_features_1k\.csv, expected one"):
        create(tmp_path, folder, side_features="user_active_degree")


def test_mistakes_are_named(folder: Path, tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"unknown side feature.*'user_active'; did you mean 'user_active_degree'"
    ):
        create(tmp_path, folder, side_features="user_active")
    with pytest.raises(ValueError, match=r"user_features_1k\.csv, line 1: the header lacks is_video_author"):
        create(tmp_path, folder, side_features="is_video_author")
    broken = f"{VIDEO_HEADER}\n{VIDEOS}x,1,AD,2020-01-01,1,1\n"
    (folder / "video_features_basic_1k.csv").write_text(broken)
    with pytest.raises(ValueError, match=r"basic_1k\.csv, line 7: video_id is 'x', expected an integer"):
        create(tmp_path, folder, side_features="tag")


def test_changed_features_are_read_again(folder: Path, tmp_path: Path):
    before = create(tmp_path, folder, side_features="user_active_degree").model(torch.device("cpu"))
    (folder / "user_features_1k.csv").write_text(f"{USER_HEADER}\n3,full_active,0,5,0,1\n")
    after = create(tmp_path, folder, side_features="user_active_degree").model(torch.device("cpu"))
    rows = [
        [p.shape[0] for n, p in model.named_parameters() if "user_active_degree" in n]
        for model in (before, after)
    ]
    assert rows == [[3], [2]]
