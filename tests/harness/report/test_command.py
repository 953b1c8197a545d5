"""`nestpipe report` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from harness.cli import main
from tests.harness.report import sample


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_a_page_is_written_and_never_overwritten_unasked(tmp_path: Path) -> None:
    sample.write_run(tmp_path / "runs", "20261130T000000Z-000001", sizes=(2,))
    page, text = tmp_path / "new" / "report.html", tmp_path / "report.md"
    done = report(tmp_path / "runs", "--out", page, "--markdown", text, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output.splitlines()[-1])
    assert document["html"] == str(page)
    assert document["bytes"] == page.stat().st_size > 0
    assert document["sections"] == ["environment", "comparison"]
    assert "Comparison" in done.output
    assert "not in it: accuracy by epoch: nestpipe train" in done.output
    assert text.read_text().startswith("# NestPipe results")

    text.write_text("mine")
    page.unlink()
    refused = report(tmp_path / "runs", "--out", page, "--markdown", text)
    assert refused.exit_code == 1
    assert "report.md exists; --force overwrites it" in refused.output
    assert text.read_text() == "mine"
    assert not page.exists()
    assert report(tmp_path / "runs", "--out", page, "--markdown", text, "--force").exit_code == 0
    assert text.read_text().startswith("# NestPipe")


def test_bad_input_ends_with_a_message_and_leaves_no_page(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    (tmp_path / "empty").mkdir()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "results.jsonl").write_text('{"run_id": "2026')
    (tmp_path / "file").write_text("")
    for folder, out, message in (
        ("empty", page, "no results in"),
        ("missing", page, "no folder"),
        ("cut", page, "results.jsonl:1: cut short or damaged"),
        ("empty", tmp_path / "file" / "report.html", "cannot write into"),
        ("empty", Path("/proc/report.html"), "cannot write into /proc ("),
        ("empty", tmp_path / "cut", "is a directory"),
    ):
        done = report(tmp_path / folder, "--out", out)
        assert done.exit_code != 0
        assert message in done.output
        assert "Traceback" not in done.output
    assert not page.exists()
    assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []
