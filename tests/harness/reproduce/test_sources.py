"""How runs become launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from harness.reproduce import items
from harness.reproduce.measured import Measured, Run
from harness.reproduce.sources import EmulatedSource, open_source
from tests.harness.reproduce.formula import measured


class Launches:
    """Stands for the emulated cluster: answers from the formula and keeps what was launched."""

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []

    def __call__(
        self,
        methods: Sequence[str],
        profile_names: Sequence[str],
        num_workers: int,
        steps: int,
        *,
        profile_overrides: Mapping[str, float],
        settings: Mapping[str, str],
    ) -> dict[tuple[str, int], Measured]:
        self.done.append(
            {"methods": list(methods), "profiles": list(profile_names), "at": (num_workers, steps)}
        )
        changes = tuple(profile_overrides.items()), tuple(settings.items())
        return {
            (method, int(name.rsplit("-", 1)[1])): measured(Run(method, name, *changes))
            for method in methods
            for name in profile_names
        }


def test_one_launch_a_method_runs_all_profiles() -> None:
    launches = Launches()
    (table3,) = items.get("table3")
    found = EmulatedSource(launches, num_workers=2, steps=9).measure(table3.runs)
    methods = [launch["methods"] for launch in launches.done]
    assert methods == [["torchrec"], ["2d-sp"], ["uniemb"], ["nestpipe"]]
    every = [f"paper-npu-{size}" for size in items.SIZES]
    assert all(launch["profiles"] == every for launch in launches.done)
    assert all(launch["at"] == (2, 9) for launch in launches.done)
    assert found == {run: measured(run) for run in table3.runs}


def test_overrides_get_launches_of_their_own() -> None:
    launches = Launches()
    runs = [run for name in ("fig9", "fig10") for run in items.get(name)[0].runs]
    found = EmulatedSource(launches, num_workers=2, steps=3).measure(runs)
    # fig10's layers and lengths ask for the same two dense times: 8 + 2 methods x (plain, 2 dims, 2 dense).
    assert len(launches.done) == 8 + 10
    assert found == {run: measured(run) for run in runs}


def test_unknown_evidence_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'emulated'"):
        open_source("emulate", num_workers=2, steps=3)


def test_emulated_evidence_comes_from_the_emulated_cluster() -> None:
    source = open_source("emulated", num_workers=4, steps=3)
    assert source.evidence == "emulated"
    assert source.settings == {"num_workers": 4, "steps": 3}
