"""The emulated cluster around real methods: the same charges, the same losses, modelled durations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.distributed as dist

from baselines import registry
from baselines.interface import Setup
from harness.emulation import profiles
from harness.emulation.cluster import Cluster, EmulatedRunner, link_cost
from harness.emulation.device import DeviceCosts, ModelledDevice
from harness.emulation.fabric import BACKEND, Fabric, register
from harness.emulation.host import ChargedBatches, EngineTier, HostCosts, count_unique_rows
from harness.emulation.link import Group
from harness.emulation.profiles import LOCAL, Profile
from nestpipe.batching import features_of, split_batch
from nestpipe.optim import RowWiseAdagrad
from tests.distributed import run_workers
from workloads import registry as workloads
from workloads.interface import Workload

SMALL = {"preset": "tiny", "exponent": "0.5", "num_rows": "400"}
# Short enough for a test, long enough to stand out of a busy machine's noise.
QUICK = replace(
    profiles.get("paper-npu-1536"), dense_ms=120.0, lookup_ms=200.0, comm_ms=80.0, group_comm_ms=30.0
)


def _workload(num_workers: int) -> Workload:
    return workloads.create("synthetic", SMALL, seed=0, num_workers=num_workers, cache_dir=Path("unused"))


def _setup(workload: Workload) -> Setup:
    return Setup(
        model=workload.model(torch.device("cpu")),
        sparse_optimizer=RowWiseAdagrad(lr=0.02),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        options={"micro_batches": 4, "sync_every": 4},
    )


def _on_fabric() -> Fabric:
    """Replace the default group, which the test helper made of gloo, by the fabric."""
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    fabric = register()
    dist.init_process_group(BACKEND, store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    return fabric


def _step(
    rank: int, num_workers: int, methods: Sequence[str], profile: Profile, num_steps: int
) -> dict[str, tuple[list[float], float, tuple[float, float], float, list[float]]]:
    """By method: losses, median step, rows read and written a step, link time, exposed parts."""
    fabric = _on_fabric()
    workload = _workload(num_workers)
    cluster = Cluster(fabric, workload.batch_size)
    cluster.calibrate(lambda: _setup(workload), workload.batches(rank=rank, num_workers=num_workers))
    cluster.use(profile)
    results = {}
    for name in methods:
        runner = cluster.build(registry.get(name), _setup(workload))
        assert isinstance(runner, EmulatedRunner)
        batches = workload.batches(rank=rank, num_workers=num_workers)
        losses, stamps = [], [time.perf_counter()]
        for _ in range(num_steps):
            losses.append(runner.progress(batches)[0].item())
            stamps.append(time.perf_counter())
        runner.drain()
        parts = runner.step_times()[2:]
        exposed = [median(getattr(p, f"{n}_ms") for p in parts) for n in ("lookup", "comm", "dense")]
        step_ms = 1e3 * median(after - before for before, after in pairwise(stamps[2:]))
        results[name] = (losses, step_ms, runner.rows_a_step(), runner.total_comm_ms(), exposed)
        runner.close()
        dist.barrier()
    fabric.close()
    return results


def _plain(rank: int, num_workers: int, methods: Sequence[str], num_steps: int) -> dict[str, list[float]]:
    workload = _workload(num_workers)
    results = {}
    for name in methods:
        runner = registry.get(name).build(_setup(workload))
        batches = workload.batches(rank=rank, num_workers=num_workers)
        results[name] = [runner.progress(batches)[0].item() for _ in range(num_steps)]
        runner.drain()
        runner.close()
        dist.barrier()
    return results


METHODS = ("torchrec", "torchrec-sparse-dist", "uniemb", "sync", "dbp", "nestpipe")


def test_pacing_changes_no_loss() -> None:
    paced = run_workers(_step, 2, METHODS, QUICK, 6, timeout_s=110)
    plain = run_workers(_plain, 2, METHODS, 6)
    for rank in range(2):
        for name in METHODS:
            assert paced[rank][name][0] == plain[rank][name], name


@pytest.mark.timed
def test_durations_are_the_profiles() -> None:
    (results, _) = run_workers(_step, 2, ("torchrec", "uniemb", "dbp", "nestpipe"), QUICK, 9, timeout_s=90)
    base_ms = QUICK.lookup_ms + QUICK.comm_ms + QUICK.dense_ms
    _, step_ms, _, total_comm_ms, (lookup_ms, comm_ms, dense_ms) = results["torchrec"]
    # Nothing can take less than modelled; a busy machine may take more.
    assert base_ms * 0.97 < step_ms < base_ms * 1.25
    assert lookup_ms > QUICK.lookup_ms * 0.9
    assert comm_ms > QUICK.comm_ms * 0.9
    assert dense_ms > QUICK.dense_ms * 0.98
    assert total_comm_ms == pytest.approx(QUICK.comm_ms, rel=0.25)
    for name in ("uniemb", "dbp"):
        _, step_ms, _, _, (lookup_ms, _, _) = results[name]
        assert step_ms < base_ms - 0.75 * QUICK.lookup_ms, name
        assert lookup_ms < 0.2 * QUICK.lookup_ms, name
    assert results["nestpipe"][1] < results["dbp"][1]


def test_the_same_rows_cost_the_same() -> None:
    """TorchRec's kernels and the engine's tables are asked for the same unique rows."""
    results = run_workers(_step, 2, ("torchrec", "torchrec-nodedup", "sync"), LOCAL, 5)
    rows = [
        sum(result[name][2][0] for result in results) for name in ("torchrec", "torchrec-nodedup", "sync")
    ]
    assert rows[0] == rows[1] == rows[2] > 0
    written = [sum(result[name][2][1] for result in results) for name in ("torchrec", "sync")]
    assert written[0] == written[1] == rows[0]
    costs = HostCosts(read_ms_per_row=0.5, write_ms_per_row=0.25)
    assert costs.of_rows("read", 10) == 5.0
    began = time.perf_counter()
    with EngineTier(costs).access("write", 80, 0):
        pass
    assert time.perf_counter() - began >= 0.02


def test_unique_rows_are_counted_by_feature() -> None:
    batch = next(_workload(1).batches(rank=0, num_workers=1))
    features = batch.sparse_features
    assert count_unique_rows(features) == features.values().unique().numel()


def test_batches_charge_preparation_and_copies_by_share() -> None:
    costs = HostCosts(prepare_ms=20.0, copy_ms=40.0)
    batches = ChargedBatches(_workload(1).batches(rank=0, num_workers=1), costs)
    began = time.perf_counter()
    batch = next(batches)
    prepared = time.perf_counter()
    parts, _ = split_batch(batch, features_of, (1, 3), None, None)
    split = time.perf_counter()
    moved = parts[0].batch.to(torch.device("cpu"))
    assert prepared - began >= 0.02
    assert 0.01 <= time.perf_counter() - split < 0.03
    assert torch.equal(moved.labels, parts[0].batch.labels)


@pytest.mark.timed
def test_the_device_runs_the_real_model_inside_its_budget() -> None:
    workload = _workload(1)
    batch = next(workload.batches(rank=0, num_workers=1))
    losses = []
    for scale in (1.0, 2.0):
        model = workload.model(torch.device("cpu"))
        with torch.no_grad():
            for parameter in model.head.parameters():  # type: ignore[union-attr]
                parameter.mul_(scale)
        ModelledDevice(model, DeviceCosts(dense_ms=30.0, launch_ms=10.0), workload.batch_size)
        began = time.perf_counter()
        loss, _ = model(batch)
        loss.backward()
        assert time.perf_counter() - began >= 0.03
        losses.append(loss.item())
        assert all(p.grad is not None for p in model.parameters())
    assert losses[0] != losses[1]
    assert DeviceCosts(30.0, 10.0).of_samples(0.25) == 15.0


def test_a_model_without_a_head_is_named() -> None:
    with pytest.raises(ValueError, match="Linear has no submodule `head`"):
        ModelledDevice(torch.nn.Linear(2, 2), DeviceCosts(), 4)


def test_link_costs_follow_the_kind_of_group() -> None:
    profile = profiles.get("paper-npu-1536")
    world = link_cost(Group((0, 1, 2, 3), 4), profile, 1e6)
    sharding = link_cost(Group((0, 2), 4), profile, 1e6)
    replica = link_cost(Group((0, 1), 4), profile, 1e6)
    assert 1e6 / world.bytes_per_ms + 2 * world.latency_ms == pytest.approx(profile.comm_ms)
    assert 1e6 / sharding.bytes_per_ms + 2 * sharding.latency_ms == pytest.approx(profile.group_comm_ms)
    assert sharding.latency_ms == pytest.approx(world.latency_ms * profile.group_share)
    assert replica.bytes_per_ms == pytest.approx(world.bytes_per_ms * profile.replica_speedup)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"dense_ms": -1.0}, "dense_ms must be at least 0"),
        ({"lookup_ms": float("nan")}, "lookup_ms must be at least 0"),
        ({"read_share": 0.9}, "must sum to at most 1"),
        ({"dense": 1.0}, "no field 'dense': did you mean 'dense_ms'"),
        ({"launch_ms": 600.0}, "launch_ms must be at most dense_ms"),
    ],
)
def test_bad_profiles(overrides: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        profiles.get("paper-npu-1536", overrides)


def test_unknown_profiles_and_worker_counts() -> None:
    with pytest.raises(ValueError, match="did you mean 'paper-npu-1536'"):
        profiles.get("paper-npu-1537")
    with pytest.raises(ValueError, match="5 real workers do not divide num_workers = 1536"):
        profiles.get("paper-npu-1536").processes_stand_for(5)
    assert profiles.get("paper-npu-1536").processes_stand_for(4) == 384


def test_profiles_hold_the_papers_ratios() -> None:
    for workers, step_ms in ((128, 2569.0), (1536, 5793.83)):
        profile = profiles.get(f"paper-npu-{workers}")
        modelled = profile.lookup_ms + profile.comm_ms + profile.dense_ms
        assert modelled / profile.dense_ms == pytest.approx(step_ms / profiles.PAPER_DENSE_MS)


def test_2d_in_groups_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="needs groups of at least two real workers"):
        run_workers(_step, 2, ("2d-sp",), QUICK, 1)


@pytest.mark.slow
def test_sixteen_workers_on_one_machine() -> None:
    results = run_workers(_step, 16, ("nestpipe",), QUICK, 4, timeout_s=110)
    assert len(results) == 16
    assert all(len(result["nestpipe"][0]) == 4 for result in results)
