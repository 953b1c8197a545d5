"""The example of a third party's package, installed: it is found, set, examined and measured like our own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from baselines import registry
from baselines.interface import Method, MethodSetting
from harness.catalog import method_settings
from harness.cli import main
from harness.options import parse_settings


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, as pip installs it, offline."""
    folder = tmp_path_factory.mktemp("plugin")
    # From a copy, because setuptools builds inside the source.
    source = shutil.copytree(repository / "examples" / "nestpipe-baseline-example", folder / "source")
    target = folder / "target"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-index", "--no-build-isolation", "--target", str(target), str(source)]
    subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return target


@pytest.fixture
def plugged(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)


def test_it_is_listed_with_its_setting(plugged: None) -> None:
    result = CliRunner().invoke(main, ["list"])
    assert "plugin, replicated_tables:REPLICATED" in result.output
    assert "library against torchrec within 1e-05" in result.output
    assert "touched rows alone (replicated)" in result.output
    completed = ShellComplete(main, {}, "nestpipe", "_NESTPIPE_COMPLETE").get_completions(
        ["conformance", "sync"], "re"
    )
    assert [item.value for item in completed] == ["replicated"]


def test_its_setting_is_parsed_for_it_alone(plugged: None) -> None:
    keys = method_settings(("torchrec", "replicated"))
    assert parse_settings(["exchange=touched"], [], plugin_keys=keys).method == {"exchange": "touched"}
    with pytest.raises(ValueError, match="exchange: must be whole or touched, got 'all'"):
        parse_settings(["exchange=all"], [], plugin_keys=keys)
    with pytest.raises(ValueError, match="'exchang': did you mean 'exchange'"):
        parse_settings(["exchang=all"], [], plugin_keys=keys)
    assert method_settings(("torchrec", "sync")) == {}
    result = CliRunner().invoke(main, ["run", "torchrec", "--set", "exchange=whole"])
    assert "unknown setting 'exchange'" in result.output


@pytest.mark.parametrize("taken", ["replicas", "sparse_lr", "batch_size"])
def test_a_setting_that_has_a_meaning_already_is_refused(taken: str) -> None:
    with pytest.raises(ValueError, match=f"declares the setting '{taken}', which is taken"):
        parse_settings([], ["batch_size"], plugin_keys={taken: lambda key, text: text})


def test_two_methods_may_share_a_setting_but_not_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Third(Method):
        def __init__(self, meaning: str) -> None:
            self.settings = {"depth": MethodSetting(int, meaning)}

        def build(self, setup: object) -> object:  # type: ignore[override]
            raise AssertionError

    found = {"one": Third("of look-ahead"), "same": Third("of look-ahead"), "other": Third("of the tree")}
    monkeypatch.setattr(registry, "is_third_party", found.__contains__)
    monkeypatch.setattr(registry, "get", found.__getitem__)
    assert method_settings(("one", "same"))["depth"]("depth", "3") == 3
    with pytest.raises(ValueError, match="'one' and 'other' both declare the setting 'depth'"):
        method_settings(("one", "other"))


@pytest.mark.parametrize("exchange", ["whole", "touched"])
def test_it_conforms(plugged: None, exchange: str) -> None:
    result = CliRunner().invoke(
        main, ["conformance", "replicated", "--set", f"exchange={exchange}", "--json"]
    )
    assert result.exit_code == 0, result.output
    checks = {
        found["check"]: found for found in json.loads(result.output.splitlines()[-1])["methods"][0]["checks"]
    }
    assert checks["build"]["detail"] == f"tables on every worker, {exchange} gradients all-reduced"
    assert checks["exactness"]["verdict"] == "passed"
    assert [name for name, found in checks.items() if found["verdict"] == "skipped"] == [
        "uneven ends",
        "freshness",
    ]


def test_it_is_measured_beside_the_others(plugged: None, tmp_path: Path) -> None:
    arguments = [
        "run",
        "sync",
        "replicated",
        "--steps",
        "3",
        "--set",
        "preset=tiny",
        "--set",
        "exchange=whole",
    ]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    runs = json.loads(result.output.splitlines()[-1])["runs"]
    assert runs[0]["loss"] == pytest.approx(runs[1]["loss"], rel=1e-5)
    settings = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])["settings"]
    assert settings["exchange"] == "whole"
