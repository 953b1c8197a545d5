"""A user's own log: the same interactions in every form, text ids, and mistakes named."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from workloads import log_parquet, registry
from workloads.sequences import SequenceWorkload

COLUMNS = {"user": "who", "item": "what", "time": "when", "action": "weight"}
Row = tuple[Any, Any, int, float]
"""User, item, second, weight."""


def rows(users: list[Any], items: list[Any], num: int = 200) -> list[Row]:
    generator = random.Random(4)
    return [
        (
            generator.choice(users),
            generator.choice(items),
            1_700_000_000 + generator.randrange(20),
            generator.choice([0.5, 2]),
        )
        for _ in range(num)
    ]


INTEGERS = rows([3, 1, 2**40], [7, 2**33, 0])
TEXTS = rows(["ann", "bob, jr", "Zoë"], ["a/1", "007", 'say "b"'])


def create(path: Path | str, cache: Path, **settings: str) -> SequenceWorkload:
    settings = {"path": str(path), **COLUMNS} | settings
    workload = registry.create("log", settings, seed=1, num_workers=1, cache_dir=cache)
    assert isinstance(workload, SequenceWorkload)
    return workload


def lists_of(workload: SequenceWorkload) -> dict[Any, list[tuple[Any, int, float]]]:
    """By user: item, second and weight; ids as the source has them."""
    histories = workload.histories

    def named(ids: np.ndarray, names: np.ndarray | None) -> list[Any]:
        return ids.tolist() if names is None else [names[code].decode() for code in ids.tolist()]

    users = named(histories.user_ids, histories.user_names)
    items = named(histories.item_ids[histories.items], histories.item_names)
    found = list(zip(items, histories.timestamps_s.tolist(), histories.actions.tolist(), strict=True))
    bounds = histories.offsets.tolist()
    return {user: found[bounds[place] : bounds[place + 1]] for place, user in enumerate(users)}


def expected(given: list[Row]) -> dict[Any, list[tuple[Any, int, float]]]:
    lists: dict[Any, list[tuple[Any, int, float]]] = {}
    for user, item, time, weight in sorted(given, key=lambda row: row[2]):
        lists.setdefault(user, []).append((item, time, weight))
    return lists


def quoted(cell: Any, separator: str) -> str:
    text = str(cell)
    return '"' + text.replace('"', '""') + '"' if separator in text or '"' in text else text


def write_csv(path: Path, given: list[Row], separator: str = ",", ticks: int = 1) -> Path:
    """Columns in another order than the settings', and one that nobody asked for."""
    lines = [separator.join(["note", "when", "who", "what", "weight"])]
    for user, item, time, weight in given:
        cells = ["x y", str(time * ticks), user, item, weight]
        lines.append(separator.join(quoted(cell, separator) for cell in cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def table_of(given: list[Row], time: pa.Array | None = None) -> pa.Table:
    users, items, times, weights = zip(*given, strict=True)
    when = pa.array(times) if time is None else time
    return pa.table(
        {"who": users, "note": ["x"] * len(given), "what": items, "when": when, "weight": weights}
    )


@pytest.mark.parametrize("given", [INTEGERS, TEXTS], ids=["integers", "texts"])
@pytest.mark.parametrize(("name", "separator"), [("comma", ","), ("tab", "\t"), ("|", "|")])
def test_csv(tmp_path: Path, given: list[Row], name: str, separator: str):
    path = write_csv(tmp_path / "mine.csv", given, separator)
    workload = create(path, tmp_path / "cache", separator=name)
    assert lists_of(workload) == expected(given)
    assert next(workload.batches(rank=0, num_workers=1)).sparse_features.values().numel() > 0


@pytest.mark.parametrize("given", [INTEGERS, TEXTS], ids=["integers", "texts"])
@pytest.mark.parametrize("batch_rows", [1, 64, 1000])
def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[Row], batch_rows: int):
    monkeypatch.setattr(log_parquet.read_parquet, "__defaults__", (batch_rows,))
    for part, name in ((given[:77], "a.parquet"), (given[77:], "b.parquet")):
        pa.parquet.write_table(table_of(part), tmp_path / name, row_group_size=50)
    assert lists_of(create(tmp_path, tmp_path / "cache")) == expected(given)


TIMES: dict[str, Callable[[list[int]], tuple[pa.Array, str]]] = {
    "ms": lambda times: (pa.array([time * 1000 + 999 for time in times]), "ms"),
    "ns": lambda times: (pa.array([time * 10**9 + 1 for time in times]), "ns"),
    "fractions": lambda times: (pa.array([time + 0.75 for time in times]), "s"),
    "timestamps": lambda times: (pa.array(times, pa.timestamp("s")), "ms"),
    "zoned timestamps": lambda times: (
        pa.array([time * 10**9 + 5 for time in times], pa.timestamp("ns", "Asia/Tokyo")),
        "s",
    ),
}


@pytest.mark.parametrize("kind", TIMES)
def test_times_in_parquet(tmp_path: Path, kind: str):
    times, unit = TIMES[kind]([row[2] for row in INTEGERS])
    pa.parquet.write_table(table_of(INTEGERS, times), tmp_path / "mine.parquet")
    assert lists_of(create(tmp_path, tmp_path / "cache", time_unit=unit)) == expected(INTEGERS)


def test_dictionaries_and_booleans_in_parquet(tmp_path: Path):
    table = table_of([(user, item, time, float(weight == 2)) for user, item, time, weight in TEXTS])
    for place, name in enumerate(table.column_names):
        if name in ("who", "what"):
            table = table.set_column(place, name, table.column(name).dictionary_encode())
        if name == "weight":
            table = table.set_column(place, name, table.column(name).cast(pa.bool_()))
    pa.parquet.write_table(table, tmp_path / "mine.parquet")
    found = lists_of(create(tmp_path, tmp_path / "cache"))
    assert found == expected([(user, item, time, float(weight == 2)) for user, item, time, weight in TEXTS])


def test_large_integers_stay_exact(tmp_path: Path):
    path = write_csv(tmp_path / "mine.csv", [(1, 1, 1_700_000_000, 1.0)] * 2)
    path.write_text(path.read_text().replace("1700000000", "1700000000123456789", 1))
    path.write_text(path.read_text().replace(",1700000000,", ",1700000000123456788,"))
    histories = create(path, tmp_path / "cache", time_unit="ns").histories
    assert histories.timestamps_s.tolist() == [1_700_000_000] * 2


def test_without_weights_all_weigh_one(tmp_path: Path):
    path = write_csv(tmp_path / "mine.csv", INTEGERS)
    assert set(create(path, tmp_path / "cache", action="").histories.actions.tolist()) == {1.0}
    pa.parquet.write_table(table_of(INTEGERS), tmp_path / "mine.parquet")
    parquet = create(tmp_path / "mine.parquet", tmp_path / "cache", action="")
    assert set(parquet.histories.actions.tolist()) == {1.0}


def test_ids_that_only_begin_as_integers(tmp_path: Path):
    times = range(1_700_000_000, 1_700_001_002)
    given = [(1, 1, time, 1.0) for time in times[:-1]] + [("one", "007", times[-1], 1.0)]
    path = write_csv(tmp_path / "mine.csv", given)
    with pytest.raises(ValueError, match=r"mine\.csv, line 1003: who is 'one', expected .*text_ids=true"):
        create(path, tmp_path / "cache")
    found = lists_of(create(path, tmp_path / "cache", text_ids="true"))
    assert found == {"1": [("1", time, 1.0) for time in times[:-1]], "one": [("007", times[-1], 1.0)]}


def test_leading_zeros_are_kept(tmp_path: Path):
    given = [(2, "7", 1_700_000_000, 1.0), (1, "007", 1_700_000_001, 1.0)]
    path = write_csv(tmp_path / "mine.csv", given)
    assert lists_of(create(path, tmp_path / "cache")) == expected(given)


CSV_MISTAKES: dict[str, tuple[str, str]] = {
    "no such column": (
        "whom,what,when,weight\n1,2,3,4\n",
        r"line 1: unknown column 'who'; did you mean 'whom'",
    ),
    "other separator": ("who;what;when;weight\n1;2;3;4\n", "is separator=comma right"),
    "twice": ("who,what,when,weight,who\n1,2,3,4,5\n", "line 1: a column's name stands twice"),
    "no row": ("who,what,when,weight\n", "no rows"),
    "empty": ("", "line 1: unknown column 'who'"),
    "blank text id": ("who,what,when,weight\nann,b,3,4\n,b,3,4\n", "line 3: who is '', expected an id"),
    "long text id": (
        f"who,what,when,weight\nann,b,3,4\n{'x' * 257},b,3,4\n",
        "line 3: who is 'x+', expected an id",
    ),
    "date": (
        "who,what,when,weight\n1,2,2024-01-05,4\n",
        "line 2: when is '2024-01-05', expected a finite number",
    ),
    "too late": ("who,what,when,weight\n1,2,1e300,4\n", r"when is 1e\+300, expected less than 2\*\*63"),
    "short row": ("who,what,when,weight\n1,2,3,4\n1,2,3\n", "line 3: 3 columns, expected 4"),
}


@pytest.mark.parametrize(("text", "message"), CSV_MISTAKES.values(), ids=CSV_MISTAKES)
def test_mistakes_in_csv(tmp_path: Path, text: str, message: str):
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"mine\.csv.*{message}"):
        create(tmp_path / "mine.csv", tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".npy"]


def test_not_utf8(tmp_path: Path):
    path = write_csv(tmp_path / "mine.csv", TEXTS)
    path.write_bytes(path.read_bytes().replace("ë".encode(), b"\xeb", 1))
    with pytest.raises(ValueError, match=r"mine\.csv, line \d+: who is 'Zo.', expected an id"):
        create(path, tmp_path / "cache")


PARQUET_MISTAKES: dict[str, tuple[dict[str, list[Any]], str]] = {
    "no such column": ({"whom": [1], "what": [2], "when": [3], "weight": [4]}, "did you mean 'whom'"),
    "missing value": (
        {"who": [1, 2, None], "what": [1, 2, 3], "when": [1, 2, 3], "weight": [1, 2, 3]},
        "row 3: who is missing",
    ),
    "ids as floats": ({"who": [1.5], "what": [2], "when": [3], "weight": [4]}, "who is of type double"),
    "times as text": ({"who": [1], "what": [2], "when": ["x"], "weight": [4]}, "when is of type string"),
    "no number": (
        {"who": [1], "what": [2], "when": [3], "weight": [float("nan")]},
        "weight has a value that",
    ),
    "no rows": ({"who": [], "what": [], "when": [], "weight": []}, "no rows"),
}


@pytest.mark.parametrize(("columns", "message"), PARQUET_MISTAKES.values(), ids=PARQUET_MISTAKES)
def test_mistakes_in_parquet(tmp_path: Path, columns: dict[str, list[Any]], message: str):
    pa.parquet.write_table(pa.table(columns), tmp_path / "mine.parquet")
    with pytest.raises(ValueError, match=rf"mine\.parquet.*{message}"):
        create(tmp_path / "mine.parquet", tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.suffix == ".npy"]


def test_parquet_that_ends_too_soon(tmp_path: Path):
    path = tmp_path / "mine.parquet"
    pa.parquet.write_table(table_of(INTEGERS), path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"mine\.parquet: expected a whole Parquet file"):
        create(path, tmp_path / "cache")


def test_files_that_do_not_do(tmp_path: Path):
    with pytest.raises(ValueError, match="needs path="):
        create("", tmp_path / "cache")
    with pytest.raises(FileNotFoundError, match=r"holds no \.parquet"):
        create(tmp_path, tmp_path / "cache")
    write_csv(tmp_path / "a.csv", INTEGERS)
    (tmp_path / "b.csv").write_text("who,what,when,weight\n1,2,3,4\n")
    with pytest.raises(ValueError, match="different headers"):
        create(tmp_path, tmp_path / "cache")
    pa.parquet.write_table(table_of(INTEGERS), tmp_path / "c.parquet")
    with pytest.raises(ValueError, match="Parquet files and others"):
        create(tmp_path, tmp_path / "cache")
    with pytest.raises(ValueError, match="separator=commas: expected one of comma"):
        create(tmp_path, tmp_path / "cache", separator="commas")
    with pytest.raises(ValueError, match="a column for each"):
        create(tmp_path, tmp_path / "cache", item="who")
