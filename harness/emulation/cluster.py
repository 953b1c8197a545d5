"""An emulated cluster on one worker: builds methods under it, calibrates it, reads what it did."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist

from baselines.interface import Method, Runner, Setup, StepTimes
from baselines.torchrec_base import TORCHREC
from baselines.torchrec_runner import TorchRecRunner
from harness.emulation.device import DeviceCosts, ModelledDevice
from harness.emulation.fabric import Fabric
from harness.emulation.host import ChargedBatches, EngineTier, HostCosts, TorchRecTier
from harness.emulation.link import Group, LinkCost
from harness.emulation.profiles import LOCAL, Profile
from harness.emulation.work import OpRecord
from nestpipe.schedule import Schedule

_NUM_CALIBRATION_STEPS = 4


@dataclass(frozen=True)
class Calibration:
    """What TorchRec's base pipeline moves in a step, a mean over steps and workers."""

    rows_read: float
    rows_written: float
    row_bytes: float
    """Bytes of rows and of their gradients on this worker's link."""


class Cluster:
    """The costs of one worker; `use` changes the profile for everything built by `build`."""

    def __init__(self, fabric: Fabric, num_samples: int) -> None:
        self.fabric = fabric
        self._num_samples = num_samples
        self._host = HostCosts()
        self._device = DeviceCosts()
        self._calibration: Calibration | None = None
        self._profile = LOCAL

    def calibrate(self, make_setup: Callable[[], Setup], batches: Iterator[Any]) -> None:
        """Count what TorchRec's base pipeline moves, at no cost; a collective."""
        runner = self.build(TORCHREC, make_setup())
        for _ in range(_NUM_CALIBRATION_STEPS):
            runner.progress(batches)
        runner.drain()
        counts = torch.tensor([*runner.rows_a_step(), runner.row_bytes_a_step()], dtype=torch.float64)
        runner.close()
        dist.all_reduce(counts)
        self._calibration = Calibration(*(counts / dist.get_world_size()).tolist())

    def use(self, profile: Profile) -> None:
        """Charge by `profile` from now on; after `calibrate`, by all workers between steps."""
        assert self._calibration is not None, "calibrate first"
        counts = self._calibration
        lookup_ms = profile.lookup_ms
        write_share = 1.0 - profile.prepare_share - profile.copy_share - profile.read_share
        self._host.prepare_ms = lookup_ms * profile.prepare_share
        self._host.copy_ms = lookup_ms * profile.copy_share
        self._host.read_ms_per_row = lookup_ms * profile.read_share / max(1.0, counts.rows_read)
        self._host.write_ms_per_row = lookup_ms * write_share / max(1.0, counts.rows_written)
        self._device.dense_ms, self._device.launch_ms = profile.dense_ms, profile.launch_ms
        self._profile = profile
        self.fabric.set_costs(self.link_cost)

    def link_cost(self, group: Group) -> LinkCost:
        """What a collective of `group` costs now."""
        row_bytes = self._calibration.row_bytes if self._calibration else 0.0
        return link_cost(group, self._profile, row_bytes)

    def build(self, method: Method, setup: Setup) -> EmulatedRunner:
        """A collective: the method under this cluster's costs.

        Raises ValueError for TorchRec's 2D with groups of one: it sends nothing inside them, and torch
        gives its replicas the world's group, so the fabric could not tell what to charge.
        """
        replicas = setup.options.get("replicas", 2)
        if method.name == "2d-sp" and 1 < dist.get_world_size() <= replicas:
            raise ValueError(
                f"2d-sp on an emulated cluster needs groups of at least two real workers; {replicas} "
                f"replicas take {2 * replicas} workers, not {dist.get_world_size()}"
            )
        ModelledDevice(setup.model, self._device, self._num_samples)
        tier = EngineTier(self._host)
        inner = method.build(replace(setup, host_tier=tier))
        if isinstance(inner, TorchRecRunner):
            observer = TorchRecTier(self._host)
            inner.observe(observer)
            return EmulatedRunner(inner, self, observer)
        return EmulatedRunner(inner, self, tier)

    def charged(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, taking the modelled time to prepare and to copy."""
        return ChargedBatches(batches, self._host)


def link_cost(group: Group, profile: Profile, row_bytes: float) -> LinkCost:
    """What a collective of `group` costs, so that TorchRec's `row_bytes` take the profile's time.

    A sharding group stands for `group_share` of the cluster. Replicas sit in one node, where
    `replica_speedup` applies and latency is small.
    """
    if not profile.comm_ms:
        return LinkCost()
    if group.kind == "sharding":
        return _cost(profile.group_comm_ms, profile.num_workers * profile.group_share, profile, row_bytes)
    whole = _cost(profile.comm_ms, profile.num_workers, profile, row_bytes)
    if group.kind == "replica":
        return LinkCost(whole.bytes_per_ms * profile.replica_speedup, 0.0)
    return whole


def _cost(comm_ms: float, num_peers: float, profile: Profile, row_bytes: float) -> LinkCost:
    latency_ms = profile.latency_us_per_peer * num_peers / 1e3
    on_link_ms = comm_ms - 2 * latency_ms  # a base step sends rows once and gradients once
    if on_link_ms <= 0:
        raise ValueError(
            f"profile {profile.name!r}: two latencies of latency_us_per_peer = "
            f"{profile.latency_us_per_peer} x {num_peers:.0f} peers exceed the communication time of "
            f"{comm_ms} ms"
        )
    return LinkCost(row_bytes / on_link_ms if row_bytes else math.inf, latency_ms)


class EmulatedRunner(Runner):
    """A method's own runner, with the emulated cluster's batches and what the cluster logged of it."""

    def __init__(self, inner: Runner, cluster: Cluster, tier: EngineTier | TorchRecTier) -> None:
        self.inner = inner
        self._cluster = cluster
        self._tier = tier
        self._source: Iterator[Any] | None = None
        self._charged_source: Iterator[Any] | None = None
        self._num_steps = 0
        self._row_transfers: list[OpRecord] = []
        cluster.fabric.take_log()

    @property
    def schedule(self) -> Schedule | None:  # type: ignore[override]
        """The method's own schedule."""
        return self.inner.schedule

    @property
    def note(self) -> str:  # type: ignore[override]
        """The method's own note."""
        return self.inner.note

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step on charged batches."""
        if self._source is not batches or self._charged_source is None:
            self._source, self._charged_source = batches, self._cluster.charged(batches)
        self._num_steps += 1
        return self.inner.progress(self._charged_source)

    def step_times(self) -> list[StepTimes]:
        """The method's own exposed times."""
        return self.inner.step_times()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The method's own state."""
        return self.inner.state_dict()

    def drain(self) -> None:
        """Wait for what is in flight and take the fabric's log of this turn."""
        self.inner.drain()
        self._row_transfers += [
            r for r in self._cluster.fabric.take_log() if r.is_float and r.kind == "all_to_all"
        ]

    def close(self) -> None:
        """End the method."""
        self.inner.close()

    def rows_a_step(self) -> tuple[float, float]:
        """Unique rows read and written in a step, look-ahead included."""
        return tuple(self._tier.num_rows[kind] / self._num_steps for kind in ("read", "write"))  # type: ignore[return-value]

    def row_bytes_a_step(self) -> float:
        """Bytes of rows and row gradients on the link in a step."""
        return sum(record.num_bytes for record in self._row_transfers) / self._num_steps

    def total_comm_ms(self) -> float:
        """Time on the link of rows and row gradients in a step, latencies included, exposed or not."""
        if not self._row_transfers:
            return 0.0
        busy_ms = sum(1e3 * (r.end_s - r.start_s) for r in self._row_transfers) / self._num_steps
        latency_ms = fmean(self._cluster.link_cost(r.group).latency_ms for r in self._row_transfers)
        return busy_ms + 2 * latency_ms
