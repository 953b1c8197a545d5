"""Simulated against emulated: real costs of one run and modelled costs predict what another measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from harness.emulation import profiles
from harness.emulation.profiles import LOCAL
from harness.simulation.against_emulated import (
    RealCosts,
    predict_emulated,
    real_costs,
    real_costs_in_turn,
)
from harness.simulation.costs import Conditions
from harness.simulation.engine import OpTime
from harness.simulation.methods import find
from harness.simulation.paper import model_of
from harness.simulation.predict import predict, steady_timeline
from harness.worker import MethodReport
from nestpipe import schedules
from nestpipe.schedule import OpKind
from workloads.configs import SYNTHETIC_PRESETS

PROFILE = profiles.get("paper-npu-1536")
# Large enough against the real work of two cores, small enough for a test.
QUICK = profiles.get(
    "paper-npu-1536", {"dense_ms": 240.0, "lookup_ms": 160.0, "comm_ms": 120.0, "group_comm_ms": 50.0}
)

_TORCHREC = ("torchrec", "torchrec-nodedup", "torchrec-sparse-dist")
_UNGROUPED = (*_TORCHREC, "sync", "dbp", "uniemb", "fwp", "nestpipe", "nestpipe-chosen")


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
    for op, time in zip(schedule.steady, slow, strict=True):
        assert found.times[op.kind, op.id.micro_batch].lane_ms == pytest.approx(time.lane_ms), op.id
    assert found.times[OpKind.REDUCE, 1].finish_ms == pytest.approx(0.25)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("methods", "num_workers", "settings"),
    [
        (_UNGROUPED, 2, {}),
        # What is predicted is a step that does not average its replicas.
        (("torchrec", "2d-sp", "nestpipe-2d"), 4, {"sync_every": "1000"}),
    ],
    ids=["one group", "two groups"],
)
def test_emulated_steps_are_predicted(
    methods: tuple[str, ...], num_workers: int, settings: dict[str, str], tmp_path: Path
) -> None:
    """One launch measures each method twice: with nothing modelled, and on the emulated cluster."""
    from harness.emulation.experiment import DEFAULT_SETTINGS, _settings
    from harness.job import Job
    from harness.launch import launch

    job = Job(
        methods=methods,
        workload="synthetic",
        num_steps=9,
        num_warmup_steps=3,
        seed=0,
        cache_dir=tmp_path,
        settings=_settings({**DEFAULT_SETTINGS, **settings}),
        clusters=(LOCAL, QUICK),
        keep_trace=True,
    )
    reports = launch(job, num_workers)

    def of(name: str, cluster: str) -> list[MethodReport]:
        return [m for r in reports for m in r.methods if (m.method, m.cluster) == (name, cluster)]

    base = of("torchrec", "local")
    errors = {}
    for name in methods:
        own, method = of(name, "local"), find(name)
        schedule = of(name, QUICK.name)[0].schedule or method.schedule
        # Real costs of the window in force under the modelled ones, which a chosen window differs in.
        twin = own if own[0].schedule in (None, schedule) else of("nestpipe", "local")
        if own[0].schedule is None:
            slowest = max(own, key=lambda report: median(report.step_ms))
            parts = (slowest.lookup_ms, slowest.comm_ms, slowest.dense_ms)
            real = real_costs_in_turn(*map(median, parts))
        else:
            real = real_costs([report.events for report in twin])
        real = replace(
            real,
            relative_bytes=_ratio([m.row_bytes for m in twin], [m.row_bytes for m in base]),
            relative_reads=_ratio([m.num_rows_read for m in own], [m.num_rows_read for m in base]),
            relative_writes=_ratio([m.num_rows_written for m in own], [m.num_rows_written for m in base]),
            relative_key_bytes=8 / (4 * SYNTHETIC_PRESETS["paper-ratio"]["embedding_dim"]),
        )
        emulated = max(median(report.step_ms) for report in of(name, QUICK.name))
        predicted = predict_emulated(QUICK, schedule, real, is_grouped=method.is_grouped)
        errors[name] = predicted / emulated - 1
        print(f"{name}: emulated {emulated:.1f}, predicted {predicted:.1f} ms, {errors[name]:+.1%}")
    assert max(map(abs, errors.values())) < 0.05, errors


def _ratio(own: list[float], base: list[float]) -> float:
    return max(own) / (sum(base) / len(base))
