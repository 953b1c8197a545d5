"""Names of the methods under comparison; listing them imports neither torch nor TorchRec."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baselines.interface import Method

ENTRY_POINT_GROUP = "nestpipe.baselines"


@dataclass(frozen=True)
class _Entry:
    """Where a built-in method lives (`module:attribute`) and its one-line summary."""

    target: str
    summary: str


_BUILT_IN = {
    "torchrec": _Entry("baselines.torchrec_base:TORCHREC", "TorchRec, index dedup, one batch at a time"),
    "torchrec-nodedup": _Entry(
        "baselines.torchrec_base:TORCHREC_NODEDUP", "TorchRec without index dedup, one batch at a time"
    ),
    "torchrec-sparse-dist": _Entry(
        "baselines.torchrec_sparse_dist:TORCHREC_SPARSE_DIST",
        "TorchRec's TrainPipelineSparseDist: the next batch's keys travel during this one",
    ),
    "2d-sp": _Entry(
        "baselines.torchrec_2d:TWO_D", "TorchRec's 2D sparse parallelism: replicas of sharding groups"
    ),
    "uniemb": _Entry(
        "baselines.engine_methods:UNIEMB", "UniEmb-style asynchronous embeddings, rows one step stale"
    ),
    "sync": _Entry("baselines.engine_methods:SYNC", "this engine's synchronous step, nothing overlapped"),
    "dbp": _Entry("baselines.engine_methods:DBP", "dual-buffer pipelining alone: batches overlap"),
    "fwp": _Entry("baselines.engine_methods:FWP", "frozen-window pipelining alone: micro-batches overlap"),
    "nestpipe": _Entry("baselines.engine_methods:NESTPIPE", "both pipelines nested, fixed window"),
    "nestpipe-chosen": _Entry(
        "baselines.engine_methods:NESTPIPE_CHOSEN", "both pipelines nested, window chosen from measured costs"
    ),
    "nestpipe-2d": _Entry(
        "baselines.engine_methods:NESTPIPE_2D", "both pipelines nested, in replicas of sharding groups"
    ),
}


def _third_parties() -> dict[str, EntryPoint]:
    """Entry points of the group, without those that carry a built-in's name."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point for point in sorted(found) if point.name not in _BUILT_IN}


def names() -> list[str]:
    """Names of all methods in display order, built-ins first, then third parties by name."""
    return [*_BUILT_IN, *_third_parties()]


def summaries() -> dict[str, str]:
    """One line on each method, by name; for a third party, where it comes from."""
    built_in = {name: entry.summary for name, entry in _BUILT_IN.items()}
    return built_in | {name: f"plugin, {point.value}" for name, point in _third_parties().items()}


def is_third_party(name: str) -> bool:
    """Whether an installed package of somebody else brings the method of that name."""
    return name in _third_parties()


def get(name: str) -> Method:
    """The method of that name, imported now; ValueError with the nearest name for an unknown one."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].target.partition(":")
        return getattr(import_module(module), attribute)
    third_parties = _third_parties()
    if name in third_parties:
        return third_parties[name].load()
    nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known methods: {', '.join(names())}"
    raise ValueError(f"unknown method {name!r}: {hint}")
