"""Verdicts on counters and times, and the exit code that they add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.regress.findings import (
    Finding,
    Verdict,
    compare,
    compare_counters,
    compare_times,
    exit_code,
)
from harness.regress.reference import Counter, TimedLaunch
from tests.harness.regress.samples import COUNTERS, MACHINE, VERSIONS, launches, reference, times


def counter_verdicts(*now: Counter) -> dict[str, Verdict]:
    return {finding.name.split("/")[-1]: finding.verdict for finding in compare_counters(COUNTERS, now)}


def time_findings(*args: object, **kwargs: object) -> dict[str, Finding]:
    return {finding.name: finding for finding in compare_times(*args, **kwargs)}  # type: ignore[arg-type]


def test_counters_must_be_what_the_reference_says_within_its_tolerance() -> None:
    rows, peak, step = COUNTERS
    assert counter_verdicts(*COUNTERS) == dict.fromkeys(("rows read", "peak tensors", "step"), Verdict.SAME)
    moved = (replace(rows, value=92.25), replace(peak, value=899.0), replace(step, value=31.5 * (1 + 1e-8)))
    assert counter_verdicts(*moved) == {
        "rows read": Verdict.MORE,
        "peak tensors": Verdict.LESS,
        "step": Verdict.SAME,
    }
    # The tolerance is the reference's, whatever the run declares.
    assert counter_verdicts(rows, replace(peak, value=1101.0, tolerance=1.0), step)["peak tensors"] == "more"
    assert counter_verdicts(rows, replace(peak, value=1099.0, tolerance=0.0), step)["peak tensors"] == "same"


def test_a_counter_of_nothing_may_not_become_something() -> None:
    stack = Counter("kernel/gather/stack", 0.0, "bytes", 0.1)
    (finding,) = compare_counters([stack], [replace(stack, value=8.0)])
    assert finding.verdict == Verdict.MORE


def test_counters_without_a_partner_are_new_or_gone() -> None:
    rows, _, step = COUNTERS
    found = counter_verdicts(rows, step, Counter("count/sync/op update", 1.0, "a step"))
    assert (found["op update"], found["peak tensors"]) == (Verdict.NEW, Verdict.GONE)


def test_a_step_that_takes_longer_is_slower_and_its_op_is_named() -> None:
    before = times(launches(8))
    now = times(launches(3, slower=1.1, ops=3.0, seed=1))
    found = time_findings(before, now)
    assert found["time/sync"].verdict == Verdict.SLOWER
    assert found["time/sync"].effect == pytest.approx(0.1, abs=0.02)
    assert found["op/sync/update"].verdict == Verdict.SLOWER
    assert found["op/sync/compute"].verdict == Verdict.SAME
    back = time_findings(now, before)
    assert back["time/sync"].verdict == back["op/sync/update"].verdict == Verdict.FASTER


def test_a_small_slowdown_shows_in_its_op_alone() -> None:
    # The op takes 1.8 of the base's 100 ms longer: 3 % of the step.
    found = time_findings(times(launches(8)), times(launches(3, slower=1.03, ops=1.6, seed=1)))
    assert found["time/sync"].verdict == Verdict.SAME
    assert found["op/sync/update"].verdict == Verdict.SLOWER
    assert exit_code(list(found.values())) == 1


def test_an_op_that_the_step_does_not_feel_is_the_same() -> None:
    # 20 % of an op that is a twentieth of the step.
    found = time_findings(times(launches(8)), times(launches(3, ops=1.2, seed=1)))
    assert found["op/sync/update"].verdict == Verdict.SAME


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"machine": {**MACHINE, "cpu": "y"}}, "cpu x then, y now"),
        ({"machine": {**MACHINE, "cores": 4}}, "cores 2 then, 4 now"),
        ({"versions": {**VERSIONS, "torch": "2.14.0"}}, "torch 2.13.0 then, 2.14.0 now"),
    ],
)
def test_times_of_another_machine_or_version_are_not_compared_but_counters_are(
    changes: dict[str, object], named: str
) -> None:
    now = times(launches(3, slower=2.0), **changes)
    found = compare(reference(times(launches(8))), COUNTERS, now)
    timed = [finding for finding in found if finding.group in ("time", "op")]
    assert {finding.verdict for finding in timed} == {Verdict.NOT_COMPARABLE}
    assert all(named in finding.note for finding in timed)
    assert [finding.verdict for finding in found if finding not in timed] == [Verdict.SAME] * 3
    assert exit_code(found) == 2


def test_memory_and_kernel_of_the_system_do_not_matter() -> None:
    now = times(launches(3, seed=1), machine={**MACHINE, "memory_bytes": 2, "os": "Linux-7"})
    assert time_findings(times(launches(8)), now)["time/sync"].verdict == Verdict.SAME


def test_a_machine_in_another_state_tells_nothing() -> None:
    now = [replace(launch, base_ms=170.0) for launch in launches(3, slower=1.5, seed=1)]
    finding = time_findings(times(launches(8)), times(now))["time/sync"]
    assert finding.verdict == Verdict.INCONCLUSIVE
    assert "the base itself takes 1.70 times as long" in finding.note


def test_too_few_launches_are_inconclusive() -> None:
    finding = time_findings(times(launches(3)), times(launches(1)))["time/sync"]
    assert finding.verdict == Verdict.INCONCLUSIVE
    assert "too few" in finding.note


def test_methods_without_a_partner_are_new_or_gone() -> None:
    other = [TimedLaunch(one.base_ms, {"dbp": one.steps["sync"]}, {"dbp": {}}) for one in launches(3)]
    found = time_findings(times(launches(8)), times(other))
    assert found["time/dbp"].verdict == Verdict.NEW
    assert found["time/sync"].verdict == found["op/sync/update"].verdict == Verdict.GONE
    assert time_findings(None, times(other))["time/dbp"].verdict == Verdict.NEW


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 0),
        ([Verdict.SAME, Verdict.FASTER, Verdict.NEW], 0),
        ([Verdict.SAME, Verdict.INCONCLUSIVE], 2),
        ([Verdict.NOT_COMPARABLE], 2),
        ([Verdict.GONE], 2),
        ([Verdict.GONE, Verdict.SLOWER], 1),
        ([Verdict.MORE, Verdict.INCONCLUSIVE], 1),
        ([Verdict.LESS], 1),
    ],
)
def test_exit_code(verdicts: list[Verdict], code: int) -> None:
    findings = [Finding("time/x", verdict, 1.0, 1.0, "") for verdict in verdicts]
    assert exit_code(findings) == code


def test_an_op_that_cannot_be_told_leaves_the_rest_decided() -> None:
    assert exit_code([Finding("op/x/update", Verdict.INCONCLUSIVE, 1.0, 1.0, "")]) == 0
    assert exit_code([Finding("op/x/update", Verdict.SLOWER, 1.0, 1.0, "")]) == 1
