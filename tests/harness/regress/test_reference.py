"""The reference file: what is kept, and what a damaged one says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.regress.experiment import Experiment, Timing, new_experiment, settings_of
from harness.regress.reference import Counter, load, save, updated
from tests.harness.regress.samples import COUNTERS, launches, reference, times


def test_a_reference_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for kept in (reference(), reference(times(launches(2)))):
        save(path, kept)
        assert load(path) == kept
    assert [item.name for item in tmp_path.iterdir()] == ["mine.json"]


def test_a_failed_write_leaves_the_old_reference(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save(path, reference())
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save(path, replace(reference(), counters=(Counter("x", float("nan"), ""),)))
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_truncated_reference_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save(path, reference(times(launches(1))))
    whole = path.read_text()
    for share in (0.0, 0.3, 0.99):
        path.write_text(whole[: int(share * len(whole))])
        with pytest.raises(
            ValueError, match=r"mine\.json: no complete JSON .* restore the file, or record it"
        ):
            load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, r"schema 2, and this version reads up to 1: install a newer nestpipe"),
        ({"schema": None}, "no reference of `nestpipe regress`"),
        ({"counters": [{"name": "x"}]}, "missing 2 required positional arguments"),
        ({"history": [{"day": "x"}]}, "unexpected keyword argument 'day'"),
        ({"history": []}, "the history is empty"),
        ({"counters": [{"name": "x", "value": "12", "unit": ""}]}, "counter 'x' has '12' where a number"),
        ({"times": {"machine": {}, "versions": {}, "launches": [[]]}}, "must be a mapping"),
        (
            {
                "times": {
                    "machine": {},
                    "versions": {},
                    "launches": [{"base_ms": 1.0, "steps": {"dbp": [None]}, "ops": {}}],
                }
            },
            "a timed launch has None where a number belongs",
        ),
        (
            {"times": {"machine": {}, "versions": {}, "launches": [{"base_ms": 1, "steps": [1], "ops": {}}]}},
            "has no attribute 'values'",
        ),
        ({"experiment": {}}, "the experiment part needs counting, kernels, simulating, timing"),
    ],
)
def test_a_reference_of_another_form_says_what_is_wrong(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "mine.json"
    save(path, reference())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"mine\.json: .*{message}"):
        load(path)


def test_other_files_are_no_reference(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="record one with --update --reason TEXT"):
        load(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="no reference of `nestpipe regress`"):
        load(tmp_path / "list.json")


def test_an_update_keeps_reasons_tolerances_and_times() -> None:
    old = reference(times(launches(2)))
    declared = replace(old.counters[0], tolerance=0.25)
    old = replace(old, counters=(declared, *old.counters[1:]))
    measured = [replace(counter, value=counter.value + 1) for counter in COUNTERS]
    new = updated(old, old.experiment, measured, None, "a reason")
    assert [counter.value for counter in new.counters] == [93.0, 1001.0, 32.5]
    assert [counter.tolerance for counter in new.counters] == [0.25, 0.1, 1e-6]
    assert [update.reason for update in new.history] == ["the first", "a reason"]
    assert new.history[-1].what == "counters"
    assert new.times == old.times
    other = replace(old.experiment, timing=replace(old.experiment.timing, num_rounds=4))
    assert updated(old, other, measured, None, "other rounds").times is None
    timed = updated(old, other, measured, times(launches(1)), "timed")
    assert timed.times is not None
    assert timed.history[-1].what == "counters and times"


def test_the_default_experiment_is_sound() -> None:
    experiment = Experiment()
    settings, profile = settings_of(experiment.timing)
    assert profile.dense_ms == settings.cluster["dense_ms"] == 64
    assert settings_of(experiment.counting)[1].is_modelled is False


def test_an_experiment_of_ones_own_is_measured_as_it_is() -> None:
    experiment = new_experiment(["dbp", "torchrec"], "synthetic", ["preset=tiny"], 4)
    assert experiment.counting.methods == ("torchrec", "dbp")
    assert (experiment.timing.base, experiment.timing.methods) == ("torchrec", ("dbp",))
    assert experiment.timing.cluster == "local"
    assert experiment.timing.settings == {"preset": "tiny"}
    assert experiment.counting.num_workers == experiment.timing.num_workers == 4
    assert experiment.simulating.methods == ("dbp", "torchrec")
    assert new_experiment([], None, [], 2) == Experiment()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ("nestpip",)}, "unknown method 'nestpip': did you mean 'nestpipe'"),
        ({"num_rounds": 0}, "must be at least 1"),
        ({"base": "nestpipe"}, "given twice"),
    ],
)
def test_an_experiment_that_cannot_run_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment(timing=replace(Timing(), **change))
