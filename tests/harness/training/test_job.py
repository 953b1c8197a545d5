"""What is refused before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.options import Settings, Training
from tests.harness.fakes import FakeWorkload
from tests.harness.training.fakes import training_job


def only_trains(
    name: str, settings: Mapping[str, str], seed: int, num_workers: int, cache_dir: Path
) -> FakeWorkload:
    return FakeWorkload(seed)


def test_a_workload_without_held_out_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="workload 'fake' holds nothing out to evaluate on"):
        training_job("plain", make_workload=only_trains).open_workload(1)


def test_float64_is_refused_where_a_method_lacks_it() -> None:
    settings = Settings(Training(dtype="float64"))
    assert list(training_job("plain", settings=settings).found_methods()) == ["plain"]
    with pytest.raises(ValueError, match="no float64 in ahead, skipping"):
        training_job("plain", "ahead", "skipping", settings=settings).found_methods()


def test_the_last_epoch_is_always_evaluated() -> None:
    job = training_job("plain", num_epochs=7, eval_every=3)
    assert [epoch for epoch in range(1, 8) if job.is_evaluated(epoch)] == [3, 6, 7]
