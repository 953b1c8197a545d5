"""What a reference guards: which methods are counted, timed and simulated, on what; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from harness.catalog import check_methods, method_settings, workload_keys
from harness.emulation import profiles
from harness.emulation.profiles import Profile
from harness.options import Settings, nearest, parse_settings
from harness.simulation.methods import names as simulated_names

_COUNTED = ("torchrec", "torchrec-sparse-dist", "uniemb", "sync", "dbp", "fwp", "nestpipe", "nestpipe-2d")
_TINY = {"preset": "tiny"}
# Most of a step is modelled: a busy neighbour slows real work down, and does not touch what sleeps.
_QUICK = {
    "preset": "paper-ratio",
    "batch_size": "128",
    "dense_ms": "64",
    "lookup_ms": "16",
    "comm_ms": "12",
    "group_comm_ms": "6",
}


@dataclass(frozen=True)
class Counting:
    """A short real run in which collectives, bytes, rows, ops and tensors are counted.

    Methods whose window depends on measured times are left out of it.
    """

    methods: tuple[str, ...] = _COUNTED
    workload: str = "synthetic"
    settings: Mapping[str, str] = field(default_factory=lambda: dict(_TINY))
    """As `--set` of `nestpipe run`."""
    num_workers: int = 2
    num_steps: int = 4


@dataclass(frozen=True)
class Timing:
    """Launches in which methods take turns with a base, whose step their times are divided by."""

    base: str = "torchrec"
    methods: tuple[str, ...] = ("nestpipe",)
    workload: str = "synthetic"
    settings: Mapping[str, str] = field(default_factory=lambda: dict(_QUICK))
    cluster: str = "paper-npu-128"
    """Emulated cluster; "local": nothing is modelled."""
    num_workers: int = 2
    num_rounds: int = 5
    steps_a_round: int = 3
    num_warmup_steps: int = 4


@dataclass(frozen=True)
class Simulating:
    """Methods whose step is simulated, and the clusters."""

    methods: tuple[str, ...] = ("torchrec", "2d-sp", "uniemb", "dbp", "fwp", "nestpipe", "nestpipe-2d")
    clusters: tuple[str, ...] = ("paper-npu-128", "paper-npu-1536")


@dataclass(frozen=True)
class Experiment:
    """Everything a reference was recorded with, and is compared with again."""

    counting: Counting = field(default_factory=Counting)
    timing: Timing = field(default_factory=Timing)
    simulating: Simulating = field(default_factory=Simulating)
    kernels: bool = True
    """Whether the registers of the compiled kernels count."""

    def __post_init__(self) -> None:
        counting, timing, simulating = self.counting, self.timing, self.simulating
        check_methods(counting.methods)
        check_methods((timing.base, *timing.methods))
        for name in simulating.methods:
            if name not in simulated_names():
                raise ValueError(f"no method {name!r} to simulate: {nearest(name, simulated_names())}")
        for cluster in simulating.clusters:
            profiles.get(cluster)
        counts = (counting.num_workers, counting.num_steps, timing.num_workers)
        if min(*counts, timing.num_rounds, timing.steps_a_round) < 1:
            raise ValueError("workers, steps and rounds of a regression experiment must be at least 1")

    def as_json(self) -> dict[str, Any]:
        """As it stands in a reference."""
        return asdict(self)


def settings_of(part: Counting | Timing) -> tuple[Settings, Profile]:
    """The parsed settings and the emulated cluster; ValueError for an unknown key or a bad value."""
    cluster, methods = "local", part.methods
    if isinstance(part, Timing):
        cluster, methods = part.cluster, (part.base, *part.methods)
    cluster_keys = profiles.field_names() if profiles.get(cluster).is_modelled else []
    pairs = [f"{key}={value}" for key, value in part.settings.items()]
    settings = parse_settings(pairs, workload_keys(part.workload), cluster_keys, method_settings(methods))
    profile = profiles.get(cluster, settings.cluster)
    if profile.is_modelled:
        profile.processes_stand_for(part.num_workers)
    return settings, profile


def new_experiment(
    methods: Sequence[str], workload: str | None, pairs: Sequence[str], num_workers: int | None
) -> Experiment:
    """The default experiment with a user's own methods, workload, settings or number of workers in it.

    A workload of one's own is timed as it is, with nothing modelled.
    """
    changes: dict[str, Any] = {}
    if methods:
        changes["methods"] = tuple(methods)
    if num_workers is not None:
        changes["num_workers"] = num_workers
    counted, timed = dict(changes), dict(changes)
    if workload is not None or pairs:
        given = dict(_pair(pair) for pair in pairs)
        for part in (counted, timed):
            part.update(workload=workload or "synthetic", settings=given)
        timed["cluster"] = "local"
    if methods:
        counted["methods"] = tuple(dict.fromkeys((Timing.base, *methods)))
        timed["methods"] = tuple(name for name in methods if name != Timing.base)
    simulated = tuple(name for name in methods if name in simulated_names())
    simulating = Simulating(methods=simulated) if methods else Simulating()
    return Experiment(Counting(**counted), Timing(**timed), simulating)


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if not key.strip() or not value.strip():
        raise ValueError(f"--set needs key=value, got {text!r}")
    return key.strip(), value.strip()


Part = TypeVar("Part", Counting, Timing, Simulating)


def from_json(entry: Mapping[str, Any]) -> Experiment:
    """The experiment of a reference; ValueError for a field that is missing, unknown or of no use."""
    _require(entry, Experiment)
    return Experiment(
        _part(Counting, entry["counting"]),
        _part(Timing, entry["timing"]),
        _part(Simulating, entry["simulating"]),
        bool(entry["kernels"]),
    )


def _part(kind: type[Part], entry: Mapping[str, Any]) -> Part:
    _require(entry, kind)
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    return kind(**values)


def _require(entry: Mapping[str, Any], kind: type[Any]) -> None:
    names = {field.name for field in fields(kind)}
    if not isinstance(entry, dict) or set(entry) != names:
        found = sorted(entry) if isinstance(entry, dict) else entry
        raise ValueError(f"the {kind.__name__.lower()} part needs {', '.join(sorted(names))}, got {found}")
