"""A worker of the counting run: methods one after the other on a fabric that costs nothing."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from baselines.interface import Method, Setup
from harness.batches import NUM_SPARE_BATCHES, BatchSource
from harness.emulation.cluster import Cluster, EmulatedRunner
from harness.emulation.fabric import BACKEND, Fabric, register
from harness.emulation.work import OpRecord
from harness.job import Job
from harness.process import process_group, run_recorded
from harness.regress.live_tensors import TensorMeter
from harness.setup import autocast, make_setup
from nestpipe.trace import OpEvent


@dataclass(frozen=True)
class MethodCounts:
    """What one method did on one worker in the steps that count."""

    method: str
    num_collectives: Mapping[str, int]
    """By kind and by what they move, such as "all_to_all of floats"."""
    num_bytes: Mapping[str, int]
    """Likewise."""
    num_rows: Mapping[str, int]
    """"read" and "write"."""
    num_ops: Mapping[str, int]
    """By kind, of a method on the engine."""
    peak_tensor_bytes: int


def run_counting(job: Job) -> list[MethodCounts]:
    """The function that every worker of the launch runs."""
    return run_recorded(_run, job)


def _run(job: Job) -> list[MethodCounts]:
    fabric = register()
    with process_group(job.settings.training, job.timeout_s, BACKEND) as device:
        with autocast(job.settings.training, device):
            counts = _count(job, device, fabric)
        dist.barrier()
        fabric.close()
    return counts


def _count(job: Job, device: torch.device, fabric: Fabric) -> list[MethodCounts]:
    workload = job.open_workload(dist.get_world_size())
    methods = {name: job.find_method(name) for name in job.methods}
    num_batches = job.num_warmup_steps + job.num_steps + NUM_SPARE_BATCHES
    source = BatchSource(workload, num_batches)
    cluster = Cluster(fabric, workload.batch_size)
    gc.collect()
    gc.freeze()
    found = []
    for method in methods.values():
        if method.extra_warmup_steps:
            continue  # it settles on what it measures, so its counts depend on the machine
        setup = make_setup(job.settings, workload, device, num_batches)
        found.append(_count_method(method, setup, cluster, source, job))
        gc.collect()
    return found


def _count_method(
    method: Method, setup: Setup, cluster: Cluster, source: BatchSource, job: Job
) -> MethodCounts:
    """Between two drains every op of a steady step happens once a step, whatever the look-ahead."""
    events: list[OpEvent] = []
    meter = TensorMeter(setup.model)
    runner = cluster.build(method, replace(setup, events=events))
    batches = source.batches()
    for _ in range(job.num_warmup_steps):
        runner.progress(batches)
    _settle(runner, cluster)
    events.clear()
    meter.peak_bytes = 0
    rows_before = _rows(runner, job.num_warmup_steps)
    for _ in range(job.num_steps):
        runner.progress(batches)
        meter.sample()
    records = _settle(runner, cluster)
    rows = _rows(runner, job.num_warmup_steps + job.num_steps)
    num_ops = Counter(event.op.kind.value for event in events)
    runner.close()
    return MethodCounts(
        method=method.name,
        num_collectives=Counter(map(_kind, records)),
        num_bytes=_bytes(records),
        num_rows={kind: rows[kind] - rows_before[kind] for kind in rows},
        num_ops=num_ops,
        peak_tensor_bytes=meter.peak_bytes,
    )


def _settle(runner: EmulatedRunner, cluster: Cluster) -> list[OpRecord]:
    """Wait for everything under way; the collectives since the last call."""
    runner.inner.drain()
    runner.step_times()
    return cluster.fabric.take_log()


def _rows(runner: EmulatedRunner, num_steps: int) -> dict[str, int]:
    read, written = runner.rows_a_step()
    return {"read": round(read * num_steps), "write": round(written * num_steps)}


def _kind(record: OpRecord) -> str:
    return f"{record.kind} of {'floats' if record.is_float else 'integers'}"


def _bytes(records: list[OpRecord]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for record in records:
        total[_kind(record)] += record.num_bytes
    return dict(total)
