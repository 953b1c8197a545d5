"""Rounds, quantiles, verdicts, differences and the ratios of the table."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from baselines.interface import Exactness
from harness.exactness import Difference, max_difference
from harness.job import Plan, plan_rounds
from harness.summary import MethodRun, Quantiles, Verdict, summarise
from harness.tables import comparison, exactness, relate
from harness.worker import MethodReport, WorkerReport


@pytest.mark.parametrize(
    ("num_steps", "measured"),
    [(1, (1,)), (2, (1, 1)), (3, (1, 1, 1)), (7, (3, 2, 2)), (30, (10, 10, 10))],
)
def test_rounds_share_the_measured_steps(num_steps: int, measured: tuple[int, ...]) -> None:
    plan = plan_rounds(num_steps, 5)
    assert plan == Plan(5, 2, measured)
    assert plan.num_steps == 5 + num_steps + 2 * len(measured)


def method_report(step_ms: list[float], **changes: object) -> MethodReport:
    report = MethodReport(
        method="sync",
        step_ms=step_ms,
        lookup_ms=[0.2 * value for value in step_ms],
        comm_ms=[0.1 * value for value in step_ms],
        dense_ms=[0.6 * value for value in step_ms],
        loss=[1.0] * len(step_ms),
        note="",
        promise=Exactness("reordered", "torchrec", 1e-6),
        difference=None,
    )
    return replace(report, **changes)  # type: ignore[arg-type]


def worker_reports(*methods: MethodReport) -> list[WorkerReport]:
    return [WorkerReport(rank, 8, 5, True, (method,)) for rank, method in enumerate(methods)]


def test_a_run_is_that_of_the_slowest_worker() -> None:
    slow = [10.0, 12.0, 11.0, 13.0]
    fast = [9.0, 9.0, 9.0, 100.0]
    reports = worker_reports(method_report(fast, loss=[1.0, 2.0, 3.0, 4.0]), method_report(slow))
    run = summarise(reports, checked=False)[0]
    assert run.step_ms == Quantiles(*np.quantile(slow, [0.1, 0.5, 0.9]))
    assert run.qps == pytest.approx(2 * 8 / 11.5e-3)
    assert (run.lookup_ms, run.comm_ms, run.dense_ms) == pytest.approx((2.3, 1.15, 6.9))
    assert run.other_ms == pytest.approx(1.15)
    assert run.loss == [1.0, 1.5, 2.0, 2.5]
    assert run.verdict == Verdict("unchecked")


@pytest.mark.parametrize(
    ("difference", "tolerance", "kind"),
    [
        (0.0, 0.0, "reordered"),
        (1e-7, 1e-6, "reordered"),
        (1e-7, 0.0, "FAILED"),
        (2e-6, 1e-6, "FAILED"),
        (0.5, None, "reordered"),
        (float("inf"), None, "FAILED"),
    ],
)
def test_verdicts(difference: float, tolerance: float | None, kind: str) -> None:
    report = method_report(
        [1.0], promise=Exactness("reordered", "torchrec", tolerance), difference=Difference(difference, "w")
    )
    verdict = summarise(worker_reports(report), checked=True)[0].verdict
    assert verdict.kind == kind
    assert verdict.against == "torchrec"


def test_a_method_without_a_promise_stays_unchecked() -> None:
    run = summarise(worker_reports(method_report([1.0], promise=None)), checked=True)[0]
    assert exactness(run.verdict) == "unchecked"


def test_json_holds_finite_numbers_only() -> None:
    report = method_report([1.0, 1.0], loss=[float("nan"), 2.0], difference=Difference(float("inf"), "w"))
    run = summarise(worker_reports(report), checked=True)[0]
    document = json.loads(json.dumps(run.as_json(), allow_nan=False))
    assert document["loss"] == [None, 2.0]
    assert document["exactness"] == {
        "class": "FAILED",
        "against": "torchrec",
        "max_difference": None,
        "arbiter": None,
    }
    assert "the loss is not finite" in run.notes


def test_difference_is_relative_to_the_largest_weight_of_each_parameter() -> None:
    reference = {"a": torch.tensor([1.0, -4.0]), "b": torch.zeros(3), "c": torch.empty(0, 5)}
    state = {"a": torch.tensor([1.0, -3.0]), "b": torch.zeros(3), "c": torch.empty(0, 5)}
    assert max_difference(state, reference) == Difference(0.25, "a")
    state["b"] = torch.full((3,), 0.5)
    assert max_difference(state, reference) == Difference(0.5, "b")
    assert max_difference(reference, reference).value == 0.0


def test_difference_is_infinite_where_values_are_not_finite() -> None:
    nan = {"a": torch.tensor([1.0, float("nan")])}
    assert max_difference(nan, nan).value == float("inf")


def test_states_of_other_names_or_shapes_are_not_compared() -> None:
    with pytest.raises(RuntimeError, match="only one of two compared methods has: b"):
        max_difference({"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)})
    with pytest.raises(RuntimeError, match=r"parameter a has shape \[1\] here and \[2\] there"):
        max_difference({"a": torch.ones(1)}, {"a": torch.ones(2)})


def method_run(method: str, workers: int, step_ms: float, kind: str = "bitwise") -> MethodRun:
    return MethodRun(
        method=method,
        workers=workers,
        batch_size=10,
        step_ms=Quantiles(step_ms, step_ms, step_ms),
        qps=1e3 * workers * 10 / step_ms,
        lookup_ms=1.0,
        comm_ms=1.0,
        dense_ms=1.0,
        other_ms=0.0,
        loss=[0.5],
        verdict=Verdict(kind, "base", 0.0, 0.0),
        notes=("2 groups of 1",) if method == "new" else (),
    )


def test_speedup_and_efficiency() -> None:
    runs = [
        method_run("base", 2, 10.0),
        method_run("new", 2, 5.0),
        method_run("base", 4, 20.0),
        method_run("new", 4, 5.0),
    ]
    relatives = [relate(run, runs) for run in runs]
    assert [relative.speedup for relative in relatives] == [1.0, 2.0, 1.0, 4.0]
    assert [relative.efficiency for relative in relatives] == [1.0, 1.0, 0.5, 1.0]


def test_a_run_that_is_not_exact_has_no_speedup() -> None:
    runs = [method_run("base", 1, 10.0), method_run("new", 1, 5.0, "FAILED")]
    assert relate(runs[1], runs).speedup is None


def test_equal_notes_share_a_footnote() -> None:
    runs = [method_run("base", 1, 10.0), method_run("new", 1, 5.0), method_run("new", 2, 5.0)]
    table, footnotes = comparison(runs, "title", ["saved"])
    assert table.row_count == 3
    assert footnotes == ["[1] 2 groups of 1", "saved"]
