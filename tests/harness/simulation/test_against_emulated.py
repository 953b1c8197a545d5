"""Simulated against emulated: real costs of one run and modelled costs predict what another measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.emulation import profiles
from harness.simulation.against_emulated import (
    RealCosts,
    predict_emulated,
    real_costs,
)
from harness.simulation.costs import Conditions
from harness.simulation.engine import OpTime
from harness.simulation.methods import find
from harness.simulation.paper import model_of
from harness.simulation.predict import predict, steady_timeline
from nestpipe import schedules
from nestpipe.schedule import OpKind

PROFILE = profiles.get("paper-npu-1536")
# Large enough against the real work of two cores, small enough for a test.
QUICK = profiles.get(
    "paper-npu-1536", {"dense_ms": 240.0, "lookup_ms": 160.0, "comm_ms": 120.0, "group_comm_ms": 50.0}
)


@pytest.mark.parametrize("name", ["torchrec", "dbp", "nestpipe", "fwp"])
def test_without_real_costs_only_the_model_counts(name: str) -> None:
    method = find(name)
    bare = replace(model_of(PROFILE), residual_lookup_ms=0.0).scaled({OpKind.SYNC: 0.0})
    expected = predict(method, bare, Conditions(PROFILE.num_workers)).step_ms
    real = RealCosts(num_key_messages=0)
    assert predict_emulated(PROFILE, method.schedule, real) == pytest.approx(expected)


def test_real_work_counts_inside_or_on_top() -> None:
    times = {
        (OpKind.PREFETCH, None): OpTime(lane_ms=3.0),
        (OpKind.WRITE_BACK, None): OpTime(lane_ms=5.0),
        (OpKind.EXCHANGE, 0): OpTime(lane_ms=0.5, finish_ms=10.0),
        (OpKind.COMPUTE, 0): OpTime(lane_ms=7.0),
    }
    nothing = RealCosts(num_key_messages=0)
    base = predict_emulated(PROFILE, schedules.sync(), nothing)
    found = predict_emulated(PROFILE, schedules.sync(), replace(nothing, times=times))
    # The write-back and gloo's transfer lie under longer modelled ones.
    assert found == pytest.approx(base + 3.0 + 0.5 + 7.0)
    moved = replace(nothing, relative_bytes=0.5, caller_ms=2.0)
    assert predict_emulated(PROFILE, schedules.dbp(), moved) < predict_emulated(
        PROFILE, schedules.dbp(), nothing
    )


def test_real_costs_are_read_from_events() -> None:
    schedule = schedules.nestpipe(2)
    given = [OpTime(lane_ms=1.0 + index) for index in range(len(schedule.steady))]
    given = [
        replace(time, link_ms=0.25) if op.kind is OpKind.REDUCE else time
        for op, time in zip(schedule.steady, given, strict=True)
    ]
    slow = [replace(time, lane_ms=2 * time.lane_ms) for time in given]
    workers = [steady_timeline(schedule, times, 6, 4.0).events(1) for times in (given, slow)]
    found = real_costs(workers)
    assert found.caller_ms == pytest.approx(4.0)
    for op, time in zip(schedule.steady, given, strict=True):
        assert found.times[op.kind, op.id.micro_batch].lane_ms == pytest.approx(1.5 * time.lane_ms), op.id
    assert found.times[OpKind.REDUCE, 1].finish_ms == pytest.approx(0.25)


def test_a_hand_off_between_lanes_is_part_of_what_an_op_takes() -> None:
    schedule = schedules.dbp()
    times = [OpTime(lane_ms=2.0) for _ in schedule.steady]
    events = steady_timeline(schedule, times, 8, 1.0).events(1)
    late_s = 0.25e-3
    # A retrieve that is woken late and returns as it did takes as long as before: the wait is part of it.
    woken = [
        replace(event, started=event.started + late_s) if event.op.kind is OpKind.RETRIEVE else event
        for event in events
    ]
    before, after = real_costs([events]).times, real_costs([woken]).times
    assert before[OpKind.RETRIEVE, None].lane_ms == pytest.approx(2.0)
    assert after[OpKind.RETRIEVE, None].lane_ms == pytest.approx(2.0)
    moved = [
        replace(event, started=event.started + late_s, returned=event.returned + late_s)
        if event.op.kind is OpKind.SYNC
        else event
        for event in events
    ]
    assert real_costs([moved]).times[OpKind.SYNC, None].lane_ms == pytest.approx(2.0 + 1e3 * late_s)


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("num_workers", "methods"),
    [(2, ("torchrec", "sync", "dbp", "uniemb", "fwp", "nestpipe")), (4, ("2d-sp", "nestpipe-2d"))],
)
def test_emulated_steps_are_predicted(tmp_path: Path, num_workers: int, methods: tuple[str, ...]) -> None:
    """`scripts/check_simulator.py` does this for every method, at the profile's own size."""
    from harness.simulation.validation import validate

    found = validate(methods, QUICK, num_workers, num_steps=9, cache_dir=tmp_path)
    assert [one.method for one in found] == list(methods)
    for one in found:
        print(f"{one.method}: emulated {one.emulated_ms:.1f}, predicted {one.predicted_ms:.1f} ms")
        assert abs(one.error) < 0.05, found
