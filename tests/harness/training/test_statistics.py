"""Means over seeds, and differences paired by seed and by user, against figures worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from harness.training.statistics import Estimate, differences, levels
from tests.harness.training.samples import launched, series, training


def test_an_estimate() -> None:
    three = Estimate((1.0, 2.0, 6.0))
    assert three.mean == 3.0
    # Deviations -2, -1, 3: variance 14 / 2, of the mean 7 / 3.
    assert three.standard_error == pytest.approx(math.sqrt(7 / 3))
    assert Estimate((0.5,)).standard_error is None
    assert Estimate((math.nan, 1.0)).as_json() == {
        "mean": None,
        "standard_error": None,
        "values": [None, 1.0],
    }


def test_levels_are_those_of_the_last_epoch() -> None:
    first, second = levels(series({"a": (0.2, 0.4), "b": (0.3, 0.3)}))
    assert (first.method, first.num_workers, first.epoch, first.seeds) == ("a", 2, 2, (0, 1))
    assert first.metrics["hr@10"].values == (0.2, 0.4)
    assert first.loss.mean == 7.0
    assert first.train_s.values == (3.0, 3.0)
    assert second.metrics["ndcg@50"].standard_error == 0.0


def test_differences_are_paired_by_seed() -> None:
    (found,) = differences(series({"a": (0.2, 0.5, 0.8), "b": (0.3, 0.6, 0.9)}))
    assert (found.method, found.base) == ("b", "a")
    assert found.metrics["hr@50"].mean == pytest.approx(0.1)
    # The seeds differ by 0.3 from each other, the pairs not at all.
    assert found.metrics["hr@50"].standard_error == pytest.approx(0.0, abs=1e-12)


def test_the_base_can_be_chosen() -> None:
    found = differences(series({"a": (0.2,), "b": (0.3,), "c": (0.5,)}), base="b")
    assert [(item.method, item.base) for item in found] == [("a", "b"), ("c", "b")]
    assert [item.metrics["hr@10"].mean for item in found] == pytest.approx([-0.1, 0.2])


def test_users_are_counted_one_by_one() -> None:
    base = training("a", (0.5,), ranks=(10, 11, 50, 51, 1), first_items=(7, 7, 7, 7, 7))
    # User 0 leaves the first ten, 2 the first fifty, 3 enters both, 4 only changes places.
    other = training("b", (0.5,), ranks=(12, 11, 60, 9, 2), first_items=(7, 7, 7, 8, 8))
    (found,) = differences([launched(0, base, other), launched(1, base, replace(base, method="b"))])
    assert found.num_users == 5
    assert {rank: count.values for rank, count in found.hits.items()} == {10: (2.0, 0.0), 50: (2.0, 0.0)}
    assert found.top_items is not None
    assert found.top_items.values == (2.0, 0.0)


def test_worker_counts_are_kept_apart() -> None:
    one = launched(0, training("a", (0.1,)), training("b", (0.2,)), num_workers=1)
    two = launched(0, training("a", (0.5,)), training("b", (0.3,)), num_workers=2)
    found = differences([one, two])
    assert [(item.num_workers, round(item.metrics["hr@10"].mean, 9)) for item in found] == [
        (1, 0.1),
        (2, -0.2),
    ]
    assert all(item.top_items is None and not item.hits for item in found)
    assert json.dumps([item.as_json() for item in found], allow_nan=False)
    assert [level.num_workers for level in levels([one, two])] == [1, 1, 2, 2]
