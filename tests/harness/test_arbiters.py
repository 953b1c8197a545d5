"""Who decides where a float32 difference exceeds a promise, and that an error never passes for rounding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from baselines.interface import Exactness, Runner, Setup, StepTimes
from harness.arbiters import (
    FLOAT64,
    ULP,
    Arbitration,
    Dispute,
    Repetition,
    arbitrate,
    find_disputes,
    measured_references,
    move_by_one_ulp,
)
from harness.batches import BatchSource
from harness.compare import compare
from harness.exactness import Difference
from harness.job import Plan
from harness.options import Settings, Training
from harness.results import read_results
from harness.summary import summarise
from harness.tables import comparison, exactness
from tests.distributed import run_workers
from tests.harness.fakes import METHODS, FakeMethod, FakeModel, FakeWorkload, fake_job
from tests.harness.test_measurement import method_report, worker_reports

JUDGED = {
    "reordered": ("reordered", "float64"),
    "reordered32": ("reordered", "ulp"),
    "against32": ("library", "ulp"),
    "skipping": ("FAILED", "float64"),
    "skipping32": ("FAILED", "ulp"),
    "nudged": ("FAILED", "float64"),
    "shuffled": ("FAILED", None),
}


def test_rounding_is_confirmed_and_an_error_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Updates large enough that the rounding of a gradient shows in the weights.
    job = fake_job(*JUDGED, num_steps=2, check=True, settings=Settings(training=Training(dense_lr=0.5)))
    with pytest.raises(click.ClickException) as caught:
        compare(job, [2], tmp_path, as_json=True)
    output = capsys.readouterr().out
    verdicts = {run["method"]: run["exactness"] for run in json.loads(output.splitlines()[-1])["runs"]}
    for name, (kind, arbiter) in JUDGED.items():
        assert verdicts[name]["class"] == kind, (name, verdicts[name])
        assert (verdicts[name]["arbiter"] or {"kind": None})["kind"] == arbiter
    # The float32 figures stay what they were; only the reordered ones owe them to rounding.
    assert all(1e-9 < verdicts[name]["max_difference"] < 1e-5 for name in ("reordered", "against32"))
    assert verdicts["reordered"]["arbiter"]["max_difference"] < 1e-13
    assert 1e-7 < verdicts["nudged"]["arbiter"]["max_difference"] < 1e-5
    assert verdicts["skipping"]["arbiter"]["max_difference"] > 1e-4
    assert 0 < verdicts["skipping32"]["arbiter"]["max_difference"] < 1e-5
    named = caught.value.message
    assert all(name in named for name, (kind, _) in JUDGED.items() if kind == "FAILED")
    assert "reordered at" not in named
    assert "and rounding does not explain it" in named
    table = read_results(tmp_path)
    row = table[(table.method == "reordered") & (table.metric == "max_difference_float64")]
    assert row.value.tolist() == [verdicts["reordered"]["arbiter"]["max_difference"]]
    assert set(table[table.method == "reordered"].exactness) == {"reordered"}
    assert set(table[table.method == "skipping32"].exactness) == {"FAILED"}


DIFFERENCES = {
    "within": Difference(1e-10, "w"),
    "reordered": Difference(1e-3, "w"),
    "against32": Difference(1e-3, "w"),
    "skipping": Difference(float("inf"), "w"),
    "same": Difference(1e-3, "w"),
    "rough": Difference(1e-3, "w"),
}


def disputes_on(rank: int, num_workers: int, dtype: str) -> list[Dispute]:
    methods = METHODS | {"within": METHODS["nudged"]}
    return find_disputes(DIFFERENCES if rank == 0 else {}, methods, dtype)


def test_only_broken_tolerances_of_float32_are_disputed_and_all_ranks_know() -> None:
    expected = [Dispute("reordered", "plain", FLOAT64), Dispute("against32", "plain32", ULP)]
    assert run_workers(disputes_on, 2, "float32") == [expected, expected]
    assert run_workers(disputes_on, 1, "float64") == [[]]


class RecordedMethod(FakeMethod):
    """Writes down when a runner of it is built, for which dtype, and closed."""

    def __init__(self, name: str, events: list[str]) -> None:
        super().__init__(name, Exactness("reordered", "plain", 1e-9), supports_float64=True)
        self._events = events

    def build(self, setup: Setup) -> Runner:
        dtype = next(setup.model.parameters()).dtype
        self._events.append(f"build {self.name} {str(dtype).removeprefix('torch.')}")
        return RecordedRunner(super().build(setup), lambda: self._events.append(f"close {self.name}"))


class RecordedRunner(Runner):
    def __init__(self, inner: Runner, on_close: Any) -> None:
        self._inner, self.close = inner, on_close  # type: ignore[method-assign]

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        return self._inner.progress(batches)

    def step_times(self) -> list[StepTimes]:
        return self._inner.step_times()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._inner.state_dict()


def record_arbitration(rank: int, num_workers: int) -> tuple[list[str], dict[str, Arbitration]]:
    """What was built and closed, in order, while four disputes were settled."""
    events: list[str] = []
    methods = {name: RecordedMethod(name, events) for name in ("plain", "a", "b", "c")}
    plan = Plan(1, 1, (2, 1))

    def make_setup(dtype: str) -> Setup:
        model = FakeModel(getattr(torch, dtype))
        return Setup(model, None, lambda parameters: torch.optim.Adam(parameters, 1e-3))  # type: ignore[arg-type]

    repetition = Repetition(methods, make_setup, BatchSource(FakeWorkload(3), plan.num_steps), plan)
    disputes = [
        Dispute("a", "plain", FLOAT64),
        Dispute("b", "plain", ULP),
        Dispute("c", "plain", FLOAT64),
        Dispute("plain", "plain", ULP),
    ]
    runners = {"plain": methods["plain"].build(make_setup("float32"))}
    references = measured_references(disputes, runners)
    events.clear()
    return events, arbitrate(disputes, references, repetition, 3)


def test_a_reference_is_repeated_once_and_one_runner_is_open_at_a_time() -> None:
    (events, arbitrations), (other_events, nothing) = run_workers(record_arbitration, 2)
    assert events == [
        *("build plain float64", "close plain", "build a float64", "close a", "build c float64", "close c"),
        *("build plain float32", "close plain"),
    ]
    assert other_events == events
    assert nothing == {}
    assert {name: ruling.kind for name, ruling in arbitrations.items()} == {
        "a": FLOAT64,
        "c": FLOAT64,
        "b": ULP,
        "plain": ULP,
    }
    assert arbitrations["a"].difference.value == 0.0


@pytest.mark.parametrize(
    ("kind", "arbitrated", "float32_difference", "confirmed"),
    [
        (FLOAT64, 3e-13, 5e-4, True),
        (FLOAT64, 0.0, 5e-4, True),
        (FLOAT64, 2e-9, 5e-4, False),
        (ULP, 1e-4, 9e-4, True),
        (ULP, 1e-4, 2e-3, False),
        (ULP, 0.0, 1e-9, False),
        (ULP, 1e-2, 0.09, True),
        (ULP, 2e-2, 0.09, False),
        (ULP, float("inf"), 1e-4, False),
        (FLOAT64, float("inf"), 1e-4, False),
        (FLOAT64, 0.0, float("inf"), False),
    ],
)
def test_what_confirms(kind: str, arbitrated: float, float32_difference: float, confirmed: bool) -> None:
    ruling = Arbitration(kind, Difference(arbitrated, "w"))
    assert ruling.confirms(float32_difference) is confirmed
    report = method_report(
        [1.0],
        promise=Exactness("reordered", "sync", 1e-10),
        difference=Difference(float32_difference, "w"),
        arbitration=ruling,
    )
    verdict = summarise(worker_reports(report), checked=True)[0].verdict
    assert verdict.kind == ("reordered" if confirmed else "FAILED")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_weight_moves_by_one_ulp_as_the_seed_says(dtype: torch.dtype) -> None:
    before, first, again, other = (FakeModel(dtype).state_dict() for _ in range(4))
    for state, seed in ((first, 1), (again, 1), (other, 2)):
        model = FakeModel(dtype)
        model.load_state_dict(state)
        move_by_one_ulp(model, seed)
        state.update(model.state_dict())
    for name, weight in before.items():
        up = torch.nextafter(weight, torch.full_like(weight, float("inf")))
        down = torch.nextafter(weight, torch.full_like(weight, float("-inf")))
        assert bool(((first[name] == up) | (first[name] == down)).all())
        assert torch.equal(first[name], again[name])
    table = "table.weight"
    assert 0 < int((first[table] > before[table]).sum()) < first[table].numel()
    assert not torch.equal(first[table], other[table])


def test_the_table_shows_both_numbers_and_says_what_the_second_is() -> None:
    reports = [
        method_report([1.0], difference=Difference(5e-4, "w"), arbitration=Arbitration(kind, value))
        for kind, value in ((FLOAT64, Difference(3e-13, "w")), (ULP, Difference(2e-4, "w")))
    ]
    runs = [summarise(worker_reports(report), checked=True)[0] for report in reports]
    assert [exactness(run.verdict) for run in runs] == [
        "reordered: 5.0e-04 against torchrec (float64: 3.0e-13)",
        "reordered: 5.0e-04 against torchrec (one ulp: 2.0e-04)",
    ]
    _, footnotes = comparison(runs, "title")
    assert [note.partition(":")[0] for note in footnotes] == ["[1] float64", "[2] one ulp"]
    assert runs[1].as_json()["exactness"]["arbiter"] == {"kind": "ulp", "max_difference": 2e-4}
