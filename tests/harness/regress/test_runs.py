"""What the gate measures: counts of a real run against what they must be, and times of fake methods."""

from __future__ import annotations

import json
import time
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from baselines import registry
from baselines.interface import Method, Runner, Setup
from harness.job import Plan
from harness.launch import launch_function
from harness.regress.counters import NUM_WARMUP_STEPS, counted, kernels, simulated
from harness.regress.experiment import Counting, Simulating
from harness.regress.time_worker import MethodTimes, TimedJob, busy_by_round, run_timing
from harness.regress.times import as_ratios
from harness.simulation.methods import find
from nestpipe import schedules
from nestpipe.schedule import Lane, Op, OpId, OpKind
from nestpipe.trace import OpEvent
from tests.harness.fakes import FakeMethod, fake_job
from workloads import registry as workloads

TINY = {"preset": "tiny"}
DIM, FLOAT_BYTES = 16, 4
NUM_STEPS = 3


class Chatty(Method):
    """`sync` with a collective more, and a buffer that it has no use for."""

    name = "chatty"
    exactness = None

    def build(self, setup: Setup) -> Runner:
        runner = registry.get("sync").build(setup)
        plain, spare = runner.progress, torch.zeros(50_000)

        def progress(batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
            dist.all_reduce(spare[:5])
            return plain(batches)

        runner.progress = progress  # type: ignore[method-assign]
        return runner


def find_method(name: str) -> Method:
    return Chatty() if name == "chatty" else registry.get(name)


def rows_of_steps(num_workers: int) -> list[list[set[int]]]:
    """The rows that each worker asks for in each counted step."""
    workload = workloads.create("synthetic", TINY, seed=0, num_workers=num_workers, cache_dir=Path("unused"))
    found = []
    for rank in range(num_workers):
        batches = workload.batches(rank=rank, num_workers=num_workers)
        steps = [set(next(batches).sparse_features.values().tolist()) for _ in range(20)]
        found.append(steps[NUM_WARMUP_STEPS : NUM_WARMUP_STEPS + NUM_STEPS])
    return list(map(list, zip(*found, strict=True)))


def test_counts_of_a_real_run_are_what_the_batches_and_schedules_say(tmp_path: Path) -> None:
    methods = ("sync", "nestpipe", "nestpipe-chosen", "chatty")
    counting = Counting(methods=methods, settings=TINY, num_steps=NUM_STEPS)
    found = {c.name: c.value for c in counted(counting, tmp_path, 60.0, find_method)}
    steps = rows_of_steps(2)
    num_asked = sum(len(rows) for step in steps for rows in step) / NUM_STEPS
    num_owned = sum(len(set.union(*step)) for step in steps) / NUM_STEPS
    assert found["count/sync/rows write"] == found["count/sync/rows read"] == num_owned
    assert found["count/nestpipe/rows write"] == num_owned
    # Rows to those who asked, and their gradients back.
    assert found["count/sync/all_to_all of floats, bytes"] == 2 * num_asked * DIM * FLOAT_BYTES
    assert found["count/sync/all_to_all of floats"] == 2
    assert found["count/nestpipe/all_to_all of floats"] == 16
    for name, schedule in (("sync", schedules.sync()), ("nestpipe", schedules.nestpipe(8))):
        for kind, number in Tally(op.kind.value for op in schedule.steady).items():
            assert found[f"count/{name}/op {kind}"] == number
    # What the gate is for: the same method with one more collective and one more buffer.
    differing = {
        name.split("/")[-1]
        for name, value in found.items()
        if name.startswith("count/sync/") and found[name.replace("/sync/", "/chatty/")] != value
    }
    assert differing == {"all_reduce of floats", "all_reduce of floats, bytes", "peak tensors"}
    assert found["count/chatty/all_reduce of floats"] == found["count/sync/all_reduce of floats"] + 1
    assert found["count/chatty/peak tensors"] > found["count/sync/peak tensors"] + 50_000 * FLOAT_BYTES * 0.9
    assert not any(name.startswith("count/nestpipe-chosen") for name in found)


class Sleepy(FakeMethod):
    duration_s = 0.0

    def misbehave(self, rank: int, step: int) -> None:
        time.sleep(self.duration_s)


def find_sleepy(name: str) -> Method:
    return Sleepy(name, duration_s={"base": 0.02, "slow": 0.05}[name])


def test_methods_take_turns_with_the_base_in_every_round() -> None:
    job = replace(fake_job("base", "slow", num_steps=2), find_method=find_sleepy)
    reports = launch_function(run_timing, TimedJob(job, num_rounds=3), 2)
    for base, slow in reports:
        assert (base.method, slow.method) == ("base", "slow")
        # Sleeps are lower bounds on however busy a machine.
        assert len(base.step_ms) == len(slow.step_ms) == 3
        assert min(base.step_ms) >= 20
        assert min(slow.step_ms) >= 50
        assert base.busy_ms == slow.busy_ms == {}


def test_ratios_are_of_means_over_the_workers_round_by_round() -> None:
    def report(base: list[float], own: list[float], busy: list[float]) -> list[MethodTimes]:
        return [MethodTimes("base", base, {}), MethodTimes("own", own, {"update": busy})]

    launch = as_ratios([report([10, 20], [4, 5], [1, 1]), report([30, 20], [8, 7], [3, 0])])
    assert launch.base_ms == 20
    assert launch.steps == {"own": [0.3, 0.3]}
    assert launch.ops == {"own": {"update": [0.1, 0.025]}}


def test_busy_times_are_those_of_a_rounds_measured_steps() -> None:
    plan = Plan(num_warmup_steps=2, num_settle_steps=1, measured=(2, 2))
    events = []
    for step in range(plan.num_steps + 1):  # one step of look-ahead has no update
        begin = float(step)
        route = Op(OpId(OpKind.ROUTE, step), Lane.KEYS)
        events.append(OpEvent(route, begin, begin, begin + 1e-3 * step, begin + 1e-3 * step))
        if step < plan.num_steps:
            update = Op(OpId(OpKind.UPDATE, step), Lane.COMPUTE)
            events.append(OpEvent(update, begin, begin + 0.5, begin + 0.6, begin + 0.6))
    busy = busy_by_round(events, plan)
    # Steps 3 and 4, then 6 and 7.
    assert busy["route"] == pytest.approx([3.5, 6.5])
    assert busy["update"] == pytest.approx([100.0, 100.0])


def test_simulated_counters_are_the_simulators_steps() -> None:
    found = {c.name: c for c in simulated(Simulating(methods=("sync", "nestpipe")))}
    assert len(found) == 2 * 2 * 4
    for name in ("sync", "nestpipe"):
        parts = [
            found[f"simulated/{name}/paper-npu-1536/{part}"].value
            for part in ("exposed lookup", "exposed comm", "dense")
        ]
        assert sum(parts) == pytest.approx(found[f"simulated/{name}/paper-npu-1536/step"].value)
        assert find(name).schedule.steady
    assert all(counter.tolerance > 0 for counter in found.values())


def test_kernels_are_read_from_their_committed_results(tmp_path: Path) -> None:
    row = {"op": "gather", "variant": "fp32", "architecture": "sm_90", "registers": 32, "stack_bytes": 0}
    path = tmp_path / "aot.json"
    path.write_text(json.dumps({"kernels": [row]}))
    found = {counter.name: counter.value for counter in kernels(path)}
    assert found == {"kernel/gather/fp32/sm_90/registers": 32, "kernel/gather/fp32/sm_90/stack": 0}
    path.write_text('{"kernels": [{}]}')
    with pytest.raises(ValueError, match=r"aot\.json: no results of compiled kernels"):
        list(kernels(path))
    with pytest.raises(FileNotFoundError, match="use a checkout"):
        list(kernels(tmp_path / "none.json"))
