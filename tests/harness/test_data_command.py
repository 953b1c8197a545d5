"""`nestpipe data stats` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.data_stats import sort_settings

SMALL = ("--set", "batch_size=24", "--set", "industrial.num_contexts=2", "--batches", "2")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["data", "stats", *arguments])


def test_tables_figure_and_json(tmp_path: Path) -> None:
    out = tmp_path / "figures"
    names = ["synthetic:tiny", "industrial", "industrial:many-interests"]
    result = invoke(*names, *SMALL, "--workers", "2", "--out", str(out), "--json", "--cache", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert all(path.stat().st_size > 10_000 for path in (out / "stats.png", out / "stats.svg"))
    # Several tables: a comparison, the features where there are several, inflation.
    for text in ("all tables together", "industrial, each table", "hour_of_week", "N = 16", "clustered"):
        assert text in result.output
    assert "synthetic:tiny, each table" not in result.output
    found = json.loads(result.output.splitlines()[-1])
    assert [each["workload"] for each in found["workloads"]] == names
    for each in found["workloads"]:
        assert (each["num_samples"], each["num_batches"], each["num_workers"]) == (48, 2, 2)
        assert [level["num_micro_batches"] for level in each["inflation"]] == [1, 2, 4, 8, 16]
        features = each["features"]
        assert features[0]["feature"] == "all"
        assert features[0]["num_keys"] == pytest.approx(sum(one["num_keys"] for one in features[1:]))
    # The setting of `industrial` reaches its presets, and nothing else.
    assert len(found["workloads"][1]["features"]) == len(found["workloads"][2]["features"]) == 5


def test_one_worker_has_one_share_of_the_batch(tmp_path: Path) -> None:
    results = [
        json.loads(invoke("industrial", *SMALL, "--workers", w, "--json").output.splitlines()[-1])
        for w in ("1", "2")
    ]
    one, two = (result["workloads"][0]["features"][0] for result in results)
    assert two["num_keys"] > 1.5 * one["num_keys"]
    assert two["unique_ratio"] < one["unique_ratio"]


def test_settings_go_where_they_belong() -> None:
    pairs = ["batch_size=8", "drift=0.1", "synthetic.exponent=0.5", "industrial:billion.exponent=1.0"]
    assert sort_settings(["synthetic", "industrial", "industrial:billion"], pairs) == {
        "synthetic": {"batch_size": "8", "exponent": "0.5"},
        "industrial": {"batch_size": "8", "drift": "0.1"},
        "industrial:billion": {"preset": "billion", "batch_size": "8", "drift": "0.1", "exponent": "1.0"},
    }
    # A value may hold any character, a dot or an equals sign among them.
    assert sort_settings(["kuairand"], ["path=a.b=c.csv"]) == {"kuairand": {"path": "a.b=c.csv"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["industrail"], "did you mean 'industrial'?"),
        (["industrial:meta"], "did you mean 'meta-like'?"),
        (["industrial", "industrial"], "each workload once"),
        (["industrial", "--set", "drft=1"], "did you mean 'drift'?"),
        (["industrial", "--set", "synthetic.drift=1"], "no such workload here"),
        (["industrial", "--set", "drift=0.1", "--set", "drift=0.2"], "drift of industrial is given twice"),
        (["industrial:laptop", "--set", "preset=billion"], "preset of industrial:laptop is given twice"),
        (["industrial", "--set", "drift"], "[WORKLOAD.]KEY=VALUE"),
        (["industrial", "--set", "drift=2"], "drift=2.0: expected 0 to 1"),
        (["kuairand"], "path="),
    ],
)
def test_mistakes_get_a_message_and_no_traceback(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1, result.output
    assert message in result.output
    assert "Traceback" not in result.output


def test_no_workload_is_a_usage_error() -> None:
    result = invoke()
    assert result.exit_code == 2
    assert "WORKLOAD" in result.output


def test_real_data(repository: Path, tmp_path: Path) -> None:
    folder = repository.parent / "shared" / "data" / "kuairand_27k_kcore15"
    if not folder.is_dir():
        pytest.skip("the reduced KuaiRand logs are not here")
    result = invoke(
        "kuairand", "--set", f"path={folder}", "--set", "batch_size=64", "--batches", "2", "--json",
        "--cache", str(tmp_path),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.output.splitlines()[-1])["workloads"]
    # Sampled negatives are not of the data.
    assert [each["feature"] for each in found["features"]] == ["all", "item"]
    quantiles = found["features"][1]["length_quantiles"]
    assert 16 <= quantiles[0] <= quantiles[-1] == 128
