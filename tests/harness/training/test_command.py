"""`nestpipe train` as a user meets it, and the recipes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.options import parse_settings
from harness.train_command import parse_seeds
from harness.training.recipes import RECIPES, resolve


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "METHOD"),
        (["torchrek"], 1, "did you mean 'torchrec'?"),
        (["sync", "sync"], 1, "given twice"),
        (["sync", "--workload", "movilens"], 1, "did you mean 'movielens'?"),
        (["sync", "--epochs", "0"], 2, "--epochs"),
        (["sync", "--seeds", "0,0"], 1, "seeds must differ"),
        (["sync", "--seeds", "one"], 1, "seeds must be whole numbers"),
        (["sync", "--workers", "0"], 1, "workers must be at least 1"),
        (["sync", "--recipe", "hstu-ml1m"], 1, "did you mean 'hstu-ml-1m'?"),
        (["sync", "--recipe", "hstu-ml-1m", "--workers", "3"], 1, "3 workers do not divide"),
        (["sync", "--set", "path=/no/such"], 1, "/no/such"),
        (["torchrec", "--workload", "synthetic", "--set", "dtype=float64"], 1, "no float64 in torchrec"),
    ],
)
def test_mistakes_get_a_message_and_no_traceback(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    arguments = [*arguments, "--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]
    result = CliRunner().invoke(main, ["train", *arguments])
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_seeds() -> None:
    assert parse_seeds("3, 0,7") == (3, 0, 7)


def test_without_a_recipe_the_defaults_hold() -> None:
    plan = resolve(None, None, None, ["max_length=20"], (1, 2))
    assert (plan.workload, plan.num_epochs, plan.pairs) == ("movielens", 20, ("max_length=20",))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_holds_settings_that_exist(name: str) -> None:
    from harness.catalog import workload_keys

    plan = resolve(name, None, None, [], (2,))
    settings = parse_settings(plan.pairs, workload_keys(plan.workload))
    assert int(settings.workload["batch_size"]) * 2 == RECIPES[name].global_batch_size


def test_what_the_user_sets_wins_over_the_recipe() -> None:
    plan = resolve("hstu-ml-1m", None, 3, ["dense_lr=0.5", "batch_size=7"], (1, 3))
    assert plan.num_epochs == 3
    assert [pair for pair in plan.pairs if pair.startswith(("dense_lr", "batch_size"))] == [
        "dense_lr=0.5",
        "batch_size=7",
    ]
    assert "beta2=0.98" in plan.pairs


def test_the_reference_level_of_ml_100k_is_well_formed(repository: Path) -> None:
    document = json.loads((repository / "results/reference/ml-100k-hstu.json").read_text())
    assert document["command"].startswith("nestpipe train ")
    assert document["commit"]
    assert document["workload"] == "movielens"
    assert document["evidence"] == "measured"
    for level in document["results"]:
        assert len(level["seeds"]) >= 3
        for metric in ("hr@10", "hr@50", "ndcg@10", "ndcg@50", "mrr"):
            estimate = level["metrics"][metric]
            values = estimate["values"]
            assert len(values) == len(level["seeds"])
            assert all(0 < value < 1 for value in values)
            assert estimate["mean"] == pytest.approx(math.fsum(values) / len(values))
            assert 0 < estimate["standard_error"] < estimate["mean"]
