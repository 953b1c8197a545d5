"""Simulated and emulated steps of the same methods, side by side: a disagreement is a bug in one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from harness.catalog import workload_keys
from harness.emulation.profiles import LOCAL, Profile
from harness.job import Job
from harness.launch import launch
from harness.options import parse_settings
from harness.simulation.against_emulated import RealCosts, predict_emulated, real_costs, real_costs_in_turn
from harness.simulation.methods import find
from harness.worker import MethodReport, WorkerReport
from workloads.configs import SYNTHETIC_PRESETS

_PRESET = "paper-ratio"
_BASE = "torchrec"
_NUM_WARMUP_STEPS = 3


@dataclass(frozen=True)
class Agreement:
    """A method's step in milliseconds, as the emulated cluster measures it and as the simulator says."""

    method: str
    emulated_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        """Signed fraction of the emulated step."""
        return self.predicted_ms / self.emulated_ms - 1


def validate(
    methods: Sequence[str], profile: Profile, num_workers: int, num_steps: int, cache_dir: Path
) -> list[Agreement]:
    """One launch that measures every method with nothing modelled and on the emulated cluster.

    The prediction sees the former and the profile. Replicas of 2D are not averaged in it: what is
    compared is a step between two averagings.
    """
    settings = {"preset": _PRESET, "sync_every": "1000000"}
    job = Job(
        methods=(_BASE, *(name for name in methods if name != _BASE)),
        workload="synthetic",
        num_steps=num_steps,
        num_warmup_steps=_NUM_WARMUP_STEPS,
        seed=0,
        cache_dir=cache_dir,
        settings=parse_settings([f"{k}={v}" for k, v in settings.items()], workload_keys("synthetic")),
        clusters=(LOCAL, profile),
        keep_trace=True,
        timeout_s=300.0,
    )
    reports = launch(job, num_workers)
    local = {name: _of(reports, name, LOCAL.name) for name in job.methods}
    return [_agreement(name, profile, _of(reports, name, profile.name), local) for name in methods]


def _agreement(
    name: str,
    profile: Profile,
    emulated: Sequence[MethodReport],
    local: Mapping[str, Sequence[MethodReport]],
) -> Agreement:
    method = find(name)
    schedule = emulated[0].schedule or method.schedule
    # A chosen window is another one where nothing is modelled; then a method with that many cuts stands in.
    same = local[name][0].schedule in (None, schedule) or "nestpipe" not in local
    real = _real_costs(local[name] if same else local["nestpipe"], local[_BASE])
    predicted_ms = predict_emulated(profile, schedule, real, is_grouped=method.is_grouped)
    return Agreement(name, max(median(report.step_ms) for report in emulated), predicted_ms)


def _real_costs(own: Sequence[MethodReport], base: Sequence[MethodReport]) -> RealCosts:
    if own[0].schedule is None:
        # Means over workers: it is chance which of several processes on few cores has to wait.
        real = real_costs_in_turn(
            fmean(median(report.lookup_ms) for report in own),
            fmean(median(report.comm_ms) for report in own),
            fmean(median(report.dense_ms) for report in own),
        )
    else:
        real = real_costs([report.events for report in own])
    return replace(
        real,
        relative_bytes=_ratio([m.row_bytes for m in own], [m.row_bytes for m in base]),
        relative_reads=_ratio([m.num_rows_read for m in own], [m.num_rows_read for m in base]),
        relative_writes=_ratio([m.num_rows_written for m in own], [m.num_rows_written for m in base]),
        relative_key_bytes=8 / (4 * SYNTHETIC_PRESETS[_PRESET]["embedding_dim"]),
    )


def _of(reports: Sequence[WorkerReport], method: str, cluster: str) -> list[MethodReport]:
    return [m for r in reports for m in r.methods if (m.method, m.cluster) == (method, cluster)]


def _ratio(own: Sequence[float], base: Sequence[float]) -> float:
    return max(own) / fmean(base)
