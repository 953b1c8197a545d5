"""What is found in folders, and what is said of what is not right there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.report.sources import find_results
from harness.results import append
from tests.harness.report import sample

RUN_ID = "20261130T000000Z-000001"


def test_results_of_every_kind_are_found_once(tmp_path: Path) -> None:
    sample.write_run(tmp_path / "b" / "runs", RUN_ID)
    sample.write_training(tmp_path / "a", "20261129T000000Z-000002")
    sample.write_trace_of(tmp_path / "b" / "step.jsonl")
    (tmp_path / "b" / "notes.jsonl").write_text("not a result\n")
    (tmp_path / "b" / "empty.jsonl").write_text("")
    results = find_results([tmp_path, tmp_path / "b", tmp_path / "a" / ".." / "b"])
    assert [(each.kind, each.run_id) for each in results.invocations] == [
        ("train", "20261129T000000Z-000002"),
        ("run", RUN_ID),
    ]
    assert [path.name for path in results.traces] == ["step.jsonl"]
    assert len(results.of("run")[0].rows) == 5 * 5 * 10
    assert len(results.of("run")[0].steps("loss")) == 5 * 5 * 2


def test_a_folder_without_results_says_how_to_make_some(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no results in .*nestpipe run METHOD"):
        find_results([tmp_path])
    with pytest.raises(ValueError, match="no folder"):
        find_results([tmp_path / "missing"])


def spoil(entry: dict[str, Any], **changes: Any) -> str:
    return json.dumps({**entry, **changes})


def without(entry: dict[str, Any], name: str) -> str:
    return json.dumps({key: value for key, value in entry.items() if key != name})


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (lambda entry: json.dumps(entry)[:100], r"results\.jsonl:4: cut short or damaged.*remove the line"),
        (lambda entry: "\x00\ufffd", r"results\.jsonl:4: cut short or damaged"),
        (lambda entry: "[1, 2]", r"results\.jsonl:4: an object was expected"),
        (lambda entry: spoil(entry, schema=9), r"results\.jsonl:4: .*'schema'.*newer version; update"),
        (lambda entry: without(entry, "exactness"), r"results\.jsonl:4: .*'exactness' is missing.*older"),
        (lambda entry: spoil(entry, value="1.5"), r"results\.jsonl:4: field 'value' cannot be '1\.5'"),
        (lambda entry: spoil(entry, workers=True), r"results\.jsonl:4: field 'workers' cannot be 'True'"),
        (lambda entry: spoil(entry, machine=None), r"results\.jsonl:4: field 'machine' cannot be 'None'"),
    ],
    ids=["truncated", "bytes", "list", "newer", "older", "text", "flag", "null"],
)
def test_a_bad_line_is_named_with_the_way_out(tmp_path: Path, spoiled: Any, message: str) -> None:
    rows = list(sample.run_rows(RUN_ID))[:4]
    lines = [*map(json.dumps, rows[:3]), spoiled(rows[3])]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=message):
        find_results([tmp_path])


def test_two_runs_of_one_id_are_refused(tmp_path: Path) -> None:
    sample.write_run(tmp_path / "a", RUN_ID)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match=rf"two runs have the id {RUN_ID}: in .*a/.* and in .*b/"):
        find_results([tmp_path])
    find_results([tmp_path / "a"])
    append(tmp_path / "a" / "results.jsonl", sample.run_rows(RUN_ID))
    with pytest.raises(ValueError, match=rf"two runs have the id {RUN_ID}"):
        find_results([tmp_path / "a"])


def test_one_id_at_two_commits_is_two_runs(tmp_path: Path) -> None:
    append(tmp_path / "results.jsonl", sample.run_rows(RUN_ID, sizes=(1,)))
    append(tmp_path / "results.jsonl", sample.run_rows(RUN_ID, sizes=(2,), commit="f" * 40))
    with pytest.raises(ValueError, match="two runs have the id"):
        find_results([tmp_path])


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        (lambda lines: [lines[0][:40], *lines[1:]], 1),
        (lambda lines: [lines[0][40:], *lines[1:]], 1),
        (lambda lines: ["", *lines], 1),
        (lambda lines: ["[1]", *lines], 1),
        (lambda lines: [lines[0][:20]], 1),
        (lambda lines: [lines[0][40:]], 1),
        (lambda lines: [*lines[:4], lines[4][:-9]], 5),
    ],
    ids=["end", "beginning", "empty", "list", "only end", "only beginning", "last"],
)
def test_a_trace_is_told_by_what_is_left_of_it(
    tmp_path: Path, damage: Callable[[list[str]], list[str]], number: int
) -> None:
    path = tmp_path / "step.jsonl"
    sample.write_trace_of(path)
    path.write_text("\n".join(damage(path.read_text().splitlines())))
    with pytest.raises(ValueError, match=rf"step\.jsonl: line {number} is no op of a trace; remove it"):
        find_results([tmp_path])


def test_a_trace_with_bytes_that_are_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "step.jsonl"
    sample.write_trace_of(path)
    path.write_bytes(b"\xff\xfe" + path.read_bytes()[2:])
    with pytest.raises(ValueError, match=r"step\.jsonl: damaged, not text throughout; remove the file"):
        find_results([tmp_path])


def test_a_trace_may_have_a_name_like_raw_steps(tmp_path: Path) -> None:
    sample.write_trace_of(tmp_path / "steps-1.jsonl")
    assert [path.name for path in find_results([tmp_path]).traces] == ["steps-1.jsonl"]


@pytest.mark.parametrize("line", ['{"method": "GET", "url": "/', '{"method": "GET", "url": "/"}', "{", ""])
def test_other_peoples_lines_are_no_trace(tmp_path: Path, line: str) -> None:
    sample.write_run(tmp_path, RUN_ID, sizes=(1,))
    (tmp_path / "log.jsonl").write_text(line)
    assert find_results([tmp_path]).traces == {}


def test_a_damaged_trace_and_damaged_steps_are_named(tmp_path: Path) -> None:
    sample.write_trace_of(tmp_path / "step.jsonl")
    with (tmp_path / "step.jsonl").open("a") as file:
        file.write('{"method": "nest')
    with pytest.raises(ValueError, match=r"step\.jsonl: line \d+ is no op"):
        find_results([tmp_path])
    newer = {"lane": "comm", "kind": "warp", "issued_ms": 0.0, "finished_ms": 1.0}
    (tmp_path / "step.jsonl").write_text(json.dumps(newer) + "\n")
    with pytest.raises(ValueError, match=r"step\.jsonl: line 1 is no op.*update this version"):
        find_results([tmp_path])
    (tmp_path / "step.jsonl").unlink()
    sample.write_run(tmp_path, RUN_ID, sizes=(1,))
    append(tmp_path / f"steps-{RUN_ID}.jsonl", [{"method": "dbp", "workers": 1}])
    run = find_results([tmp_path]).of("run")[0]
    with pytest.raises(ValueError, match=r"steps-.*:11: field 'loss' is missing; remove steps-"):
        run.steps("method", "loss")
