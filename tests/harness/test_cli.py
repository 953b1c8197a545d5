"""The command line as a user meets it: help, lists and messages for mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli import main


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "torchrec", "--workers", "0"], 2, "workers must be at least 1, got 0"),
        (["run", "torchrec", "--workers", "-2"], 2, "workers must be at least 1, got -2"),
        (["run", "torchrec", "--workers", "many"], 2, "got 'many'"),
        (["run", "torchrec", "--steps", "0"], 2, "--steps"),
        (["run"], 2, "METHOD"),
        (["run", "torchrek"], 1, "unknown method 'torchrek': did you mean 'torchrec'?"),
        (["run", "torchrec", "torchrec"], 1, "method 'torchrec' is given twice"),
        (["run", "torchrec", "--workload", "synthetik"], 1, "did you mean 'synthetic'?"),
        (["run", "torchrec", "--set", "batchsize=3"], 1, "did you mean 'batch_size'?"),
        (["run", "torchrec", "--set", "batch_size=none"], 1, "batch_size"),
        (["run", "torchrec", "--workload", "kuairand", "--set", "path=/no/such"], 1, "/no/such"),
        (["run", "torchrec", "--workload", "kuairand"], 1, "path"),
        (["run", "torchrec", "--check", "fast"], 2, "exact"),
        (["data", "fetch", "ml-10k"], 2, "ml-100k"),
        (["rum"], 2, "rum"),
    ],
)
def test_mistakes_get_a_message_and_no_traceback(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    if len(arguments) > 1 and arguments[0] == "run":
        arguments = [*arguments, "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Error: " in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.glob("out/*"))


def test_an_unwritable_folder_is_told_before_anything_is_launched(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    result = invoke("run", "torchrec", "--set", "preset=tiny", "--out", str(blocked / "out"))
    assert result.exit_code == 1
    assert str(blocked) in result.output


def test_an_earlier_trace_is_kept_without_force(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out"
    trace.write_text("an old trace")
    arguments = ["run", "sync", "--set", "preset=tiny", "--out", str(out), "--trace", str(trace)]
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert f"Error: {trace} exists; --force overwrites it, or name another file" in result.output
    assert not out.exists()
    assert invoke(*arguments, "--dry-run").exit_code == 0
    assert trace.read_text() == "an old trace"


def test_list_names_everything() -> None:
    result = invoke("list")
    assert result.exit_code == 0, result.output
    for name in ("torchrec", "nestpipe-chosen", "synthetic", "kuairand", "movielens", "hstu", "replicas"):
        assert name in result.output


def test_fetch_shows_the_terms_and_where_the_data_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from workloads import fetch

    monkeypatch.setattr(fetch, "fetch_ml_100k", lambda cache_dir: cache_dir / "ratings")
    result = invoke("data", "fetch", "ml-100k", "--cache", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "may not be redistributed" in result.output
    assert result.output.splitlines()[-1] == str(tmp_path / "ratings")


def test_a_failed_fetch_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from workloads import fetch

    def fail(cache_dir: Path) -> Path:
        raise fetch.FetchError("no network; give --set path=FOLDER")

    monkeypatch.setattr(fetch, "fetch_ml_100k", fail)
    result = invoke("data", "fetch", "ml-100k", "--cache", str(tmp_path))
    assert result.exit_code == 1
    assert "Error: no network; give --set path=FOLDER" in result.output


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.catalog.check_methods", lambda names: int("x"))
    result = invoke("run", "torchrec")
    assert isinstance(result.exception, ValueError)
