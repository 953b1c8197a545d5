"""What every reader of files does alike: strange but sound input, and mistakes named by file and line."""

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.workloads.test_kuairand import COLUMNS
from workloads import registry
from workloads.criteo import Criteo
from workloads.interface import Workload
from workloads.sequences import SequenceWorkload

Row = tuple[str, str, str]
"""User, item and time, as they are to stand in a file."""


@dataclasses.dataclass(frozen=True)
class Reader:
    """A workload on a file of interactions: how it is written."""

    workload: str
    file: str
    header: str
    line: Callable[[Row], str]
    separator: str
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    times_a_second: int = 1


def raw(row: Row) -> str:
    cells = dict.fromkeys(COLUMNS.split(","), "1") | {
        "user_id": row[0],
        "video_id": row[1],
        "time_ms": row[2],
    }
    return ",".join(cells.values())


def plain(separator: str, rating: str = "4") -> Callable[[Row], str]:
    return lambda row: separator.join((row[0], row[1], rating, row[2]))


READERS = {
    "kuairand": Reader("kuairand", "log_standard_x_1k.csv", COLUMNS, raw, ",", times_a_second=1000),
    "ratings.dat": Reader("movielens", "ratings.dat", "", plain("::"), "::"),
    "ratings.csv": Reader(
        "movielens", "ratings.csv", "userId,movieId,rating,timestamp", plain(",", "4.5"), ","
    ),
    "u.data": Reader("movielens", "u.data", "", plain("\t"), "\t"),
    "inter": Reader(
        "movielens",
        "ml-1m.inter",
        "user_id:token\titem_id:token\trating:float\ttimestamp:float",
        plain("\t", "3.0"),
        "\t",
    ),
    "log": Reader(
        "log",
        "mine.csv",
        "who;what;weight;when",
        plain(";", "2"),
        ";",
        {"user": "who", "item": "what", "time": "when", "action": "weight", "separator": "semicolon"},
    ),
}
ROWS: list[Row] = [(str(1 + i % 3), str(10 + i), str(1_600_000_000 + i)) for i in range(9)]


@pytest.fixture(params=list(READERS.values()), ids=list(READERS))
def reader(request: pytest.FixtureRequest) -> Reader:
    found: Reader = request.param
    return found


def write(folder: Path, reader: Reader, lines: list[str], *, end: str = "\n") -> Path:
    path = folder / reader.file
    header = [reader.header] if reader.header else []
    path.write_text("".join(line + end for line in [*header, *lines]), newline="")
    return path


def create(path: Path, reader: Reader, cache: Path) -> SequenceWorkload:
    settings = {"path": str(path), **reader.settings}
    workload = registry.create(reader.workload, settings, seed=1, num_workers=1, cache_dir=cache)
    assert isinstance(workload, SequenceWorkload)
    return workload


def rows_in(workload: SequenceWorkload) -> list[tuple[int, int, int]]:
    """User, item and second of every interaction, in the order of the histories."""
    histories = workload.histories
    users = np.repeat(histories.user_ids, np.diff(histories.offsets))
    items = histories.item_ids[histories.items]
    return list(zip(users.tolist(), items.tolist(), histories.timestamps_s.tolist(), strict=True))


def expected(rows: list[Row], reader: Reader) -> list[tuple[int, int, int]]:
    numbers = [(int(user), int(item), int(time)) for user, item, time in rows]
    ordered = sorted(numbers, key=lambda row: (row[0], row[2]))
    return [(user, item, time // reader.times_a_second) for user, item, time in ordered]


SOUND: dict[str, list[Row]] = {
    "times that fall and repeat": [("7", str(item), str(item // 3 % 2 * 5000)) for item in range(20, 0, -1)],
    "repeated rows": [("7", "3", "5000")] * 4,
    "ids beyond 31 bits": [("3000000000", "5000000000", "9000"), (str(2**62), str(2**63 - 1), "1000")],
    "a user with one row": [("1", "1", "1000"), ("2", "2", "2000"), ("1", "2", "3000")],
    "negative ids and times": [("-5", "-1", "-2500"), ("-5", "-2", "-500"), ("5", "0", "0")],
}


@pytest.mark.parametrize("rows", SOUND.values(), ids=SOUND)
def test_strange_but_sound(tmp_path: Path, reader: Reader, rows: list[Row]):
    path = write(tmp_path, reader, [reader.line(row) for row in rows])
    assert rows_in(create(path, reader, tmp_path / "cache")) == expected(rows, reader)


@pytest.mark.parametrize("form", ["CRLF", "no last newline", "blank lines", "byte order mark"])
def test_forms_of_text(tmp_path: Path, reader: Reader, form: str):
    lines = [reader.line(row) for row in ROWS]
    if form == "blank lines":
        lines = [line for row in lines for line in (row, "")]
    path = write(tmp_path, reader, lines, end="\r\n" if form == "CRLF" else "\n")
    content = path.read_bytes()
    if form == "no last newline":
        path.write_bytes(content[:-1])
    if form == "byte order mark":
        path.write_bytes(b"\xef\xbb\xbf" + content)
    assert rows_in(create(path, reader, tmp_path / "cache")) == expected(ROWS, reader)


BROKEN: dict[str, tuple[Callable[[str, str], str], str]] = {
    "a column less": (lambda line, separator: line.rsplit(separator, 1)[0], "columns, expected"),
    "a column more": (lambda line, separator: line + separator + "1", "columns, expected"),
    "another separator": (lambda line, separator: line.replace(separator, "|"), "1 columns, expected"),
    "no number": (lambda line, separator: line + "x", r"is '.*x', expected (an integer|a finite number)"),
    "an empty user": (lambda line, separator: line[1:], "is '', expected an integer"),
    "a user beyond 64 bits": (lambda line, separator: "9" * 20 + line, "is '9+.*', expected an integer"),
    "a word beyond UTF-8": (lambda line, separator: "\x00" + line, "is '.*', expected an integer"),
}


@pytest.mark.parametrize("where", [1, 5])
@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_row_is_named(
    tmp_path: Path, reader: Reader, where: int, change: Callable[[str, str], str], message: str
):
    lines = [reader.line(row) for row in ROWS]
    lines[where] = change(lines[where], reader.separator)
    path = write(tmp_path, reader, lines)
    number = where + 1 + bool(reader.header)
    with pytest.raises(ValueError, match=rf"{reader.file}, line {number}: .*{message}"):
        create(path, reader, tmp_path / "cache")
    assert_nothing_is_left(tmp_path / "cache")


@pytest.mark.parametrize("column", [0, 1, 3])
@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.header])
def test_a_missing_column_is_named(tmp_path: Path, name: str, column: int):
    reader = READERS[name]
    names = reader.header.split(reader.separator)
    lines = [reader.header, *(reader.line(row) for row in ROWS)]
    shorter = [reader.separator.join(np.delete(line.split(reader.separator), column)) for line in lines]
    path = tmp_path / reader.file
    path.write_text("\n".join(shorter) + "\n")
    with pytest.raises(ValueError, match=rf"{reader.file}, line 1: .*{names[column]}"):
        create(path, reader, tmp_path / "cache")
    assert_nothing_is_left(tmp_path / "cache")


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_rows(tmp_path: Path, reader: Reader, content: str):
    path = tmp_path / reader.file
    path.write_text(reader.header + content)
    with pytest.raises(ValueError, match=rf"{reader.file}(: no rows|, line 1)"):
        create(path, reader, tmp_path / "cache")
    assert_nothing_is_left(tmp_path / "cache")


def assert_nothing_is_left(cache: Path) -> None:
    assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert not list(cache.rglob("unfinished-*"))


def damage_by_cutting(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def damage_by_removing(file: Path) -> None:
    file.unlink()


def damage_by_writing(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [damage_by_cutting, damage_by_removing, damage_by_writing])
@pytest.mark.parametrize("file", ["items.npy", "offsets.npy", "contents.json"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: Callable[[Path], None], file: str):
    reader = READERS["ratings.csv"]
    path = write(tmp_path, reader, [reader.line(row) for row in ROWS])
    before = rows_in(create(path, reader, tmp_path / "cache"))
    (damaged,) = (tmp_path / "cache").rglob(file)
    damage(damaged)
    with pytest.warns(UserWarning, match="is damaged and made again: "):
        assert rows_in(create(path, reader, tmp_path / "cache")) == before
    assert rows_in(create(path, reader, tmp_path / "cache")) == before


def test_compressed_files_that_end_too_soon(tmp_path: Path):
    line = "\t".join(["0", *["5"] * 13, *["0000abcd"] * 26])
    content = gzip.compress("".join(f"{line}\n" for _ in range(500)).encode())
    path = tmp_path / "day_0.gz"

    def created() -> Workload:
        return registry.create(
            "criteo", {"path": str(path)}, seed=1, num_workers=1, cache_dir=tmp_path / "cache"
        )

    path.write_bytes(content)
    workload = created()
    assert isinstance(workload, Criteo)
    assert workload.num_steps_an_epoch(1) == 1
    for cut in (len(content) - 9, len(content) // 2, 5, 0):
        path.write_bytes(content[:cut])
        with pytest.raises(
            ValueError, match=r"day_0\.gz(, after line \d+: expected a whole gzip file|.*line 1|: no rows)"
        ):
            created()
    path.write_text(line)
    with pytest.raises(ValueError, match=r"day_0\.gz, after line 0: expected a whole gzip file"):
        created()
    assert len(list((tmp_path / "cache").rglob("labels.npy"))) == 1
    assert not list((tmp_path / "cache").rglob("unfinished-*"))
