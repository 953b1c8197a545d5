"""A user's own schedule: found, loaded, named, and refused with the way out."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import click
import pytest

from baselines import registry
from harness.schedule_file import BUILT_IN, load_schedule, method_name
from harness.schedule_method import check_schedules, find_method
from nestpipe import schedules

TAPERED = """
from __future__ import annotations
from dataclasses import dataclass

from nestpipe import schedules
from nestpipe.schedule import Schedule, overlap_batches, split_window, synchronous

@dataclass(frozen=True)
class Window:
    cuts: tuple[int, ...] = (1, 2, 1)

def tapered(window: Window = Window()) -> Schedule:
    return split_window(overlap_batches(synchronous()), window.cuts)
"""
SEVERAL = """
from nestpipe.schedules import dbp, uniemb

def early(): return dbp()
def late(): return uniemb()
def _helper(): ...
"""


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_names_are_those_of_the_methods(name: str) -> None:
    assert load_schedule(name).name == name
    assert name in registry.names()


def test_every_method_on_the_engine_has_a_schedule() -> None:
    on_engine = {n for n, entry in registry._BUILT_IN.items() if "engine_methods" in entry.target}
    assert on_engine == set(BUILT_IN)


def test_the_only_function_of_a_file(tmp_path: Path) -> None:
    schedule = load_schedule(write(tmp_path, TAPERED))
    assert schedule.name == "mine"
    assert schedule.cuts == (1, 2, 1)
    assert schedule.steady == schedules.nestpipe([1, 2, 1]).steady


def test_a_function_by_name_and_by_default(tmp_path: Path) -> None:
    file = write(tmp_path, SEVERAL)
    assert load_schedule(f"{file}:late").name == "mine:late"
    assert not load_schedule(f"{file}:late").fresh
    assert load_schedule(write(tmp_path, SEVERAL.replace("early", "schedule"))).fresh


PROBLEMS = {
    "unfinished(:": "cannot be loaded: SyntaxError",
    "import nowhere": "cannot be loaded: ModuleNotFoundError: No module named 'nowhere' (line 1)",
    "schedule = 3": "defines no function; write one called 'schedule'",
    SEVERAL: "defines early, late; say which one with ",
    "def schedule(): return 3": "schedule returned int, not a Schedule",
    "def schedule(cuts): ...": "is called without arguments but needs cuts",
    "def schedule():\n    raise KeyError('x')": "schedule failed: KeyError: 'x' (line 2)",
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"mine\.py") as raised:
        load_schedule(write(tmp_path, text))
    assert PROBLEMS[text] in str(raised.value)


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'nestpipe'"):
        load_schedule("nestpip")
    with pytest.raises(ValueError, match=r"no schedule file .*absent\.py"):
        load_schedule(str(tmp_path / "absent.py"))
    with pytest.raises(ValueError, match="defines no function 'lat': did you mean 'late'"):
        load_schedule(write(tmp_path, SEVERAL) + ":lat")


@pytest.mark.parametrize(
    ("file", "name"), [("a/b.py", "b"), ("b.py:f", "b:f"), ("./b.py", "b"), ("C:/x/b.py", "b")]
)
def test_method_names(file: str, name: str) -> None:
    assert method_name(file) == name


def test_methods_travel_by_file_and_promise_what_is_proven(tmp_path: Path) -> None:
    file = write(tmp_path, SEVERAL)
    files = check_schedules([file + ":early", file + ":late", write(tmp_path, TAPERED, "third.py")], ["sync"])
    find = pickle.loads(pickle.dumps(partial(find_method, files)))
    promises = {name: find(name).exactness for name in files}
    assert [promise.kind for promise in promises.values()] == ["bitwise", "stale by 1", "reordered"]
    assert {promise.against for promise in promises.values()} == {"sync"}
    assert find("nestpipe") is registry.get("nestpipe")


RACY = """
from dataclasses import replace
from nestpipe import schedules

def schedule():
    return replace(schedules.dbp(), num_row_buffers=1)
"""


def test_what_a_run_refuses(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="name at least one METHOD, or a --schedule FILE"):
        check_schedules([], [])
    with pytest.raises(ValueError, match="would be a second method 'sync'"):
        check_schedules([write(tmp_path, TAPERED, "sync.py")], [])
    with pytest.raises(ValueError, match="--schedule takes a Python file"):
        check_schedules(["nestpipe"], [])
    with pytest.raises(ValueError, match=r"cannot be run safely: .*retrieve\(1\) overwrites rows\(0\)"):
        check_schedules([write(tmp_path, RACY)], [])
