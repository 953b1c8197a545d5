"""The forms in which MovieLens ratings are passed around must give one and the same history."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads import registry
from workloads.cache import default_cache_dir
from workloads.fetch import ml_100k_path
from workloads.sequences import SequenceWorkload

Row = tuple[int, int, float, int]

FORMS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "ratings.dat": ("", lambda row: f"{row[0]}::{row[1]}::{row[2]:g}::{row[3]}"),
    "ratings.csv": ("userId,movieId,rating,timestamp\n", lambda row: ",".join(map(str, row))),
    "u.data": (
        "",
        lambda row: "\t".join(f"{value:g}" if i == 2 else str(value) for i, value in enumerate(row)),
    ),
    "ml-100k.inter": (
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\n",
        lambda row: "\t".join(map(str, row)) + ".0",
    ),
}


def rows(num: int = 60) -> list[Row]:
    generator = random.Random(5)
    return [
        (
            generator.choice([1, 7, 300]),
            generator.choice([2, 40, 1_000_000]),
            generator.choice([0.5, 3.0, 4.5]),
            880_000_000 + generator.randrange(9),
        )
        for _ in range(num)
    ]


def write(folder: Path, form: str, lines: list[str] | None = None) -> Path:
    header, formatted = FORMS[form]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / form
    path.write_text(header + "".join(f"{line}\n" for line in lines or map(formatted, rows())))
    return path


def create(tmp_path: Path, **settings: str) -> SequenceWorkload:
    workload = registry.create("movielens", settings, seed=1, num_workers=1, cache_dir=tmp_path / "cache")
    assert isinstance(workload, SequenceWorkload)
    return workload


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by_folder", [True, False])
def test_every_form(tmp_path: Path, form: str, by_folder: bool):
    path = write(tmp_path / "ml", form)
    histories = create(tmp_path, path=str(path.parent if by_folder else path)).histories
    ordered = sorted(rows(), key=lambda row: (row[0], row[3]))
    assert histories.user_ids.tolist() == [1, 7, 300]
    assert histories.item_ids.tolist() == [2, 40, 1_000_000]
    assert np.diff(histories.offsets).tolist() == [
        sum(row[0] == user for row in rows()) for user in (1, 7, 300)
    ]
    assert histories.item_ids[histories.items].tolist() == [row[1] for row in ordered]
    assert histories.actions.tolist() == [row[2] for row in ordered]
    assert histories.timestamps_s.tolist() == [row[3] for row in ordered]


BESIDE = {
    "ml-100k": ("u.data", ("README", "u.item", "u.user", "u1.base", "ua.test", "mku.sh")),
    "ml-1m": ("ratings.dat", ("README", "movies.dat", "users.dat")),
    "ml-20m": ("ratings.csv", ("README.txt", "links.csv", "movies.csv", "tags.csv", "genome-scores.csv")),
    "ml-latest-small": ("ratings.csv", ("README.txt", "links.csv", "movies.csv", "tags.csv")),
}


@pytest.mark.parametrize(("form", "others"), BESIDE.values(), ids=list(BESIDE))
def test_a_folder_as_it_is_unpacked(tmp_path: Path, form: str, others: tuple[str, ...]):
    path = write(tmp_path / "ml" / "inner", form)
    # The csv files of MovieLens end their lines so.
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    for other in others:
        (path.parent / other).write_text("movieId,imdbId\n1,0114709\n")
    histories = create(tmp_path, path=str(tmp_path / "ml")).histories
    assert (histories.num_users, len(histories.items)) == (3, 60)


def test_a_form_is_known_by_its_content(tmp_path: Path):
    path = write(tmp_path, "u.data").rename(tmp_path / "renamed.txt")
    assert create(tmp_path, path=str(path)).histories.num_users == 3


@pytest.mark.parametrize(
    ("form", "line", "expected"),
    [
        ("ratings.dat", "1::2::3", "line 3: 3 columns, expected 4"),
        ("ratings.dat", "1:9:2::3::4", "line 3: 3 columns, expected 4"),
        ("ratings.dat", "1:2:3:4", "line 3: 1 columns, expected 4"),
        ("ratings.dat", "1::2::3::4::5", "line 3: 5 columns, expected 4"),
        ("ratings.csv", "1,2,,4", "line 4: rating is '', expected a finite number"),
        ("ratings.csv", "1,2,3,inf", "line 4: timestamp is 'inf', expected a finite number"),
        ("u.data", "1\tTitanic\t3\t4", "line 3: movie is 'Titanic', expected an integer"),
        ("ml-100k.inter", "1\t2\t3\tnever", "line 4: timestamp:float is 'never', expected a finite number"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, form: str, line: str, expected: str):
    lines = [FORMS[form][1](row) for row in rows(4)]
    path = write(tmp_path, form, [*lines[:2], line, *lines[2:]])
    with pytest.raises(ValueError, match=f"{form}, {expected}"):
        create(tmp_path, path=str(path))


def test_without_data_the_command_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="nestpipe data fetch ml-100k"):
        create(tmp_path)


def test_fetched_data_is_found(tmp_path: Path):
    fetched = ml_100k_path(tmp_path / "cache")
    write(fetched.parent, fetched.name)
    assert create(tmp_path).histories.num_users == 3


def test_folders_that_do_not_do(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"holds none of ratings\.dat"):
        create(tmp_path, path=str(tmp_path))
    write(tmp_path, "u.data")
    write(tmp_path, "ratings.csv")
    with pytest.raises(ValueError, match="holds several ratings"):
        create(tmp_path, path=str(tmp_path))
    mixed = f"{tmp_path / 'u.data'},{tmp_path / 'ratings.csv'}"
    with pytest.raises(ValueError, match="give files of one kind"):
        create(tmp_path, path=mixed)


def test_real_ml_100k(tmp_path: Path):
    source = ml_100k_path(default_cache_dir())
    if not source.is_file():
        pytest.skip("ML-100K has not been fetched (`nestpipe data fetch ml-100k`)")
    histories = create(tmp_path, path=str(source)).histories
    lengths = np.diff(histories.offsets)
    assert (histories.num_users, histories.num_items, len(histories.items)) == (943, 1_682, 100_000)
    assert lengths.min() == 20
    for user in range(0, 943, 100):
        times = histories.timestamps_s[histories.offsets[user] : histories.offsets[user + 1]]
        assert (np.diff(times) >= 0).all()
