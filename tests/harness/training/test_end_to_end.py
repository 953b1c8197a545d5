"""The command on real methods, a real model and a small file of ratings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.training.rows import load_users

NUM_USERS, NUM_ITEMS = 41, 60


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """Users who each rated 3 to 20 items, most of them from their half of the items."""
    generator = np.random.default_rng(5)
    lines = []
    for user in range(1, NUM_USERS + 1):
        weights = np.where(np.arange(NUM_ITEMS) % 2 == user % 2, 1.0, 0.05)
        size = int(generator.integers(3, 21))
        items = generator.choice(NUM_ITEMS, size, replace=False, p=weights / weights.sum())
        lines += [f"{user}\t{item + 1}\t4\t{1000 * user + when}" for when, item in enumerate(items)]
    path = tmp_path / "u.data"
    path.write_text("\n".join(lines) + "\n")
    return path


def train(ratings: Path, out: Path, *arguments: str) -> dict[str, Any]:
    sizes = ["max_length=16", "embedding_dim=16", "num_negatives=8", "batch_size=8", f"path={ratings}"]
    settings = [word for size in sizes for word in ("--set", size)]
    common = ["--workers", "2", "--out", str(out), "--cache", str(out / "cache"), "--json"]
    result = CliRunner().invoke(main, ["train", *arguments, *common, *settings])
    assert result.exit_code == 0, result.output
    return json.loads(result.output.splitlines()[-1])


@pytest.mark.slow
def test_methods_of_both_kinds_train_alike(ratings: Path, tmp_path: Path) -> None:
    methods = ("torchrec", "nestpipe", "uniemb", "2d-sp")
    settings = ("lr_schedule=warmup-cosine", "warmup_steps=2", "max_grad_norm=1", "weight_decay=0.01")
    given = [word for setting in settings for word in ("--set", setting)]
    document = train(ratings, tmp_path / "out", *methods, "--epochs", "2", *given)
    reached = {result["method"]: result for result in document["results"]}
    assert tuple(reached) == methods
    base = reached["torchrec"]
    assert reached["nestpipe"]["loss"]["mean"] == pytest.approx(base["loss"]["mean"], rel=1e-5)
    # Stale rows and groups of their own train differently; equal losses would mean equal methods.
    for name in ("uniemb", "2d-sp"):
        assert reached[name]["loss"]["mean"] != pytest.approx(base["loss"]["mean"], rel=1e-5), name
    assert all(0 <= value["mean"] <= 1 for result in reached.values() for value in result["metrics"].values())


@pytest.mark.slow
def test_the_engine_ranks_alike_in_float64(ratings: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("sync", "nestpipe", "--epochs", "3", "--eval-every", "3", "--set", "dtype=float64")
    (difference,) = train(ratings, out, *arguments)["differences"]
    assert difference["users_whose_top_items_differ"]["values"] == [0.0]
    assert difference["users"] == NUM_USERS
    sync, nestpipe = (
        load_users(next(out.glob(f"users-*/{name}-2-workers-seed-0.npz"))) for name in ("sync", "nestpipe")
    )
    assert np.array_equal(sync.ranks, nestpipe.ranks)
    assert sync.ranks.max() > 1
