"""Profiles: every figure of an emulated cluster by name; imports no torch.

The `paper-*` profiles give TorchRec's base pipeline the ratios of lookup, communication and compute that
the paper measured; nothing else is fitted but two declared constants, `residual_lookup_ms` and
`group_share`. Milliseconds are of the paper's step scaled to `dense_ms`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

PAPER_DENSE_MS = 1714.99
"""Residual of TorchRec's step in Table II: what the emulated `dense_ms` stands for."""


@dataclass(frozen=True)
class Profile:
    """What the modelled parts of a step cost on an emulated cluster; 0 everywhere models nothing."""

    name: str
    num_workers: int
    """Emulated workers; a real process stands for num_workers / real workers of them."""
    dense_ms: float
    """Dense forward and backward of a whole batch, launches included."""
    launch_ms: float
    """Fixed part of every micro-batch's dense time."""
    lookup_ms: float
    """TorchRec's exposed lookup: batch preparation, host-to-device copy, row reads and row writes."""
    comm_ms: float
    """TorchRec's exposed communication: the exchange of a batch's rows and of their gradients."""
    group_comm_ms: float
    """The same inside a sharding group of `group_share` of the cluster, replica averaging not counted."""
    latency_us_per_peer: float
    """Added after a collective's time on the link, once an emulated peer."""
    prepare_share: float = 0.35
    copy_share: float = 0.15
    read_share: float = 0.25
    """Shares of `lookup_ms`; what is left of 1 goes to writing rows."""
    residual_lookup_ms: float = 0.0
    """Exposed in every step whose lookup is otherwise hidden (declared constant, from Table II)."""
    group_share: float = 0.25
    """Emulated share of the cluster that a 2D sharding group stands for (declared constant)."""
    replica_speedup: float = 20.0
    """Bandwidth among replicas, which are neighbours inside a node, over that of the cluster's fabric."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "name" and not value >= 0:
                raise ValueError(f"profile {self.name!r}: {field.name} must be at least 0, got {value!r}")
        if self.num_workers < 1:
            raise ValueError(f"profile {self.name!r}: num_workers must be at least 1, got {self.num_workers}")
        if self.prepare_share + self.copy_share + self.read_share > 1:
            raise ValueError(
                f"profile {self.name!r}: prepare_share, copy_share and read_share must sum to at most 1"
            )
        if self.launch_ms > self.dense_ms:
            raise ValueError(f"profile {self.name!r}: launch_ms must be at most dense_ms = {self.dense_ms}")

    @property
    def is_modelled(self) -> bool:
        """Whether anything takes a modelled time."""
        return self.dense_ms + self.lookup_ms + self.comm_ms + self.latency_us_per_peer > 0

    def processes_stand_for(self, num_processes: int) -> int:
        """Emulated workers a real process; ValueError if they do not divide."""
        if self.num_workers % num_processes:
            raise ValueError(
                f"profile {self.name!r}: {num_processes} real workers do not divide num_workers = "
                f"{self.num_workers}; use a divisor, such as {_divisors(self.num_workers)}"
            )
        return self.num_workers // num_processes


def _divisors(number: int) -> str:
    return ", ".join(str(d) for d in (1, 2, 4, 8, 16) if number % d == 0)


LOCAL = Profile("local", 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

# Step of TorchRec by workers, from Table III's efficiencies and Table II's step; communication is linear
# in the workers through Fig. 2's share at 128 and Table II's figure at 1,536.
_STEP_MS = {128: 2569.0, 256: 2815.9, 512: 3855.0, 1024: 4814.4, 1536: 5793.83}
_COMM_AT_128_MS, _COMM_AT_1536_MS = 236.0, 1207.85
DENSE_MS = 500.0
RESIDUAL_LOOKUP_MS = 30.0


def _paper_comm_ms(num_workers: float) -> float:
    slope = (_COMM_AT_1536_MS - _COMM_AT_128_MS) / (1536 - 128)
    return _COMM_AT_128_MS + slope * (num_workers - 128)


def _paper_npu(num_workers: int) -> Profile:
    scale = DENSE_MS / PAPER_DENSE_MS
    comm_ms = _paper_comm_ms(num_workers)
    return Profile(
        name=f"paper-npu-{num_workers}",
        num_workers=num_workers,
        dense_ms=DENSE_MS,
        launch_ms=0.5,
        lookup_ms=(_STEP_MS[num_workers] - PAPER_DENSE_MS - comm_ms) * scale,
        comm_ms=comm_ms * scale,
        group_comm_ms=_paper_comm_ms(num_workers * 0.25) * scale,
        latency_us_per_peer=0.3,
        residual_lookup_ms=RESIDUAL_LOOKUP_MS * scale,
    )


def _paper_gpu_128() -> Profile:
    # KuaiRand-27K, FuXi on 128 GPUs: step 4207.94, lookup 856.63, communication 312.19.
    scale = DENSE_MS / (4207.94 - 856.63 - 312.19)
    return Profile(
        name="paper-gpu-128",
        num_workers=128,
        dense_ms=DENSE_MS,
        launch_ms=0.5,
        lookup_ms=856.63 * scale,
        comm_ms=312.19 * scale,
        group_comm_ms=312.19 * scale * _paper_comm_ms(32) / _paper_comm_ms(128),
        latency_us_per_peer=0.3,
        residual_lookup_ms=RESIDUAL_LOOKUP_MS * DENSE_MS / PAPER_DENSE_MS,
    )


def names() -> list[str]:
    """All profiles."""
    return ["local", *(f"paper-npu-{workers}" for workers in _STEP_MS), "paper-gpu-128"]


def field_names() -> list[str]:
    """The figures of a profile, which can be replaced one by one."""
    return [field.name for field in fields(Profile) if field.name != "name"]


def get(name: str, overrides: Mapping[str, float] | None = None) -> Profile:
    """A profile by name with some fields replaced; ValueError with the nearest name or field."""
    if name == "local":
        profile = LOCAL
    elif name == "paper-gpu-128":
        profile = _paper_gpu_128()
    elif name in names():
        profile = _paper_npu(int(name.rsplit("-", 1)[1]))
    else:
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names())}"
        raise ValueError(f"unknown profile {name!r}: {hint}")
    known = field_names()
    for key in overrides or {}:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ValueError(f"a profile has no field {key!r}: {hint}")
    changes: dict[str, Any] = dict(overrides or {})
    if "num_workers" in changes:
        changes["num_workers"] = int(changes["num_workers"])
    return replace(profile, **changes)
