"""Names of the methods under comparison; listing them imports neither torch nor TorchRec."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Shadowed:
    """A method of a third party that cannot be had, because another one has its name."""

    name: str
    summary: str
    """Where it comes from."""
    reason: str
    """Who has the name, and the way out."""


def _entry_points() -> tuple[dict[str, EntryPoint], list[EntryPoint]]:
    """Entry points of the group: by name those that count, then those whose name another one has."""
    used: dict[str, EntryPoint] = {}
    hidden: list[EntryPoint] = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        if point.name in _BUILT_IN or point.name in used:
            hidden.append(point)
        else:
            used[point.name] = point
    return used, hidden


def _third_parties() -> dict[str, EntryPoint]:
    used, _ = _entry_points()
    return used


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


def shadowed() -> list[Shadowed]:
    """Methods of third parties whose name a built-in has, or another third party; imports none."""
    used, hidden = _entry_points()
    found = []
    for point in hidden:
        owner = _origin(used[point.name]) if point.name in used else "the built-in method"
        reason = f"{owner} has the name {point.name!r}: give this entry point another one"
        found.append(Shadowed(point.name, f"plugin, {_origin(point)}", reason))
    return found


def why_broken(name: str) -> str:
    """What keeps the method of that name from being used, empty where nothing does; imports it."""
    try:
        get(name)
    except ValueError as error:
        return str(error)
    except Exception as error:  # whatever a broken build of a library raises
        return f"cannot be imported: {_described(error)}"
    return ""


def get(name: str) -> Method:
    """The method of that name, imported now.

    ValueError with the nearest name for an unknown one, and with the reason for a third party's that cannot
    be used; of a built-in whatever its import raises.
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].target.partition(":")
        return getattr(import_module(module), attribute)
    third_parties = _third_parties()
    if name in third_parties:
        return _load(third_parties[name])
    nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known methods: {', '.join(names())}"
    raise ValueError(f"unknown method {name!r}: {hint}")


def _load(point: EntryPoint) -> Method:
    where = f"method {point.name!r} of {_origin(point)} cannot be used"
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # whatever somebody else's module raises
        raise ValueError(f"{where}: {_described(error)}") from error
    if flaw := _flaw_of(found):
        raise ValueError(f"{where}: {flaw}")
    return found


def _flaw_of(found: object) -> str:
    """What an object lacks to be a method; empty where it lacks nothing."""
    from baselines.interface import Exactness, Method, MethodSetting

    if isinstance(found, type):
        return f"this is the class {found.__name__}; name an object of it"
    if not isinstance(found, Method):
        return f"this is of type {type(found).__name__}, which is no baselines.interface.Method"
    if absent := [attribute for attribute in ("name", "exactness") if not hasattr(found, attribute)]:
        return f"{type(found).__name__} does not declare {' and '.join(absent)}"
    if not isinstance(found.exactness, Exactness | None):
        return f"its exactness is {found.exactness!r}, which is no baselines.interface.Exactness"
    settings: object = found.settings
    if not isinstance(settings, Mapping) or not all(isinstance(s, MethodSetting) for s in settings.values()):
        return "its settings are not baselines.interface.MethodSettings by key"
    return ""


def _origin(point: EntryPoint) -> str:
    package = f"package {point.dist.name} {point.dist.version}" if point.dist else "a package"
    return f"{package} ({point.value})"


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]
