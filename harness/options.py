"""The `--set key=value` settings: which key belongs to the workload, the methods or the training."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

SPARSE_OPTIMIZERS = ("rowwise_adagrad", "sgd", "adagrad", "adam")
DTYPES = ("float32", "float64")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Training:
    """What all methods of a run share: optimizers, number format and device."""

    sparse_optimizer: str = "rowwise_adagrad"
    sparse_lr: float = 0.02
    dense_lr: float = 1e-3
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Settings:
    """The settings of a run, sorted by whom they belong to."""

    training: Training = field(default_factory=Training)
    method: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, float] = field(default_factory=dict)
    """Figures of an emulated cluster that replace its profile's."""


def nearest(name: str, known: Iterable[str]) -> str:
    """How to go on from an unknown name: the nearest known one, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def parse_settings(
    pairs: Sequence[str], workload_keys: Sequence[str], cluster_keys: Sequence[str] = ()
) -> Settings:
    """Sort `key=value` strings; a ValueError names an unknown key's nearest and a bad value's form.

    Values of workload keys stay strings: the workload itself parses them.
    """
    training: dict[str, Any] = {}
    method: dict[str, Any] = {}
    workload: dict[str, str] = {}
    cluster: dict[str, float] = {}
    for key, text in map(_split, pairs):
        if key in training or key in method or key in workload or key in cluster:
            raise ValueError(f"--set {key} is given twice")
        if key in workload_keys:
            workload[key] = text
        elif key in METHOD_KEYS:
            method[key] = METHOD_KEYS[key](key, text)
        elif key in _TRAINING_KEYS:
            training[key] = _TRAINING_KEYS[key](key, text)
        elif key in cluster_keys:
            cluster[key] = _rate(key, text)
        else:
            known = sorted([*workload_keys, *METHOD_KEYS, *_TRAINING_KEYS, *cluster_keys])
            raise ValueError(f"unknown setting {key!r}: {nearest(key, known)}")
    return Settings(replace(Training(), **training), method, workload, cluster)


def parse_worker_counts(text: str) -> tuple[int, ...]:
    """`"1,2,4"` as numbers; a ValueError for anything but distinct positive whole numbers."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"workers must be whole numbers, such as 1,2,4, got {text!r}") from None
    if min(counts) < 1:
        raise ValueError(f"workers must be at least 1, got {min(counts)}")
    if len(set(counts)) < len(counts):
        raise ValueError(f"workers must differ from each other, got {text!r}")
    return counts


def _split(pair: str) -> tuple[str, str]:
    key, separator, text = pair.partition("=")
    if not separator or not key.strip() or not text.strip():
        raise ValueError(f"--set needs key=value, got {pair!r}")
    return key.strip(), text.strip()


def _positive_int(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{key} must be a whole number of at least 1, got {text!r}")
    return int(text)


def _cuts(key: str, text: str) -> int | str | list[int]:
    if text == "auto":
        return text
    if "," in text:
        return [_positive_int(key, part.strip()) for part in text.split(",")]
    return _positive_int(key, text)


def _rate(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"{key} must be a number of at least 0, got {text!r}")
    return value


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(key: str, text: str) -> str:
        if text not in choices:
            raise ValueError(f"{key} cannot be {text!r}: {nearest(text, choices)}")
        return text

    return parse


METHOD_HELP = {
    "replicas": "groups of workers that hold every table once (2d-sp, nestpipe-2d)",
    "micro_batches": "micro-batches a window: a number, sizes such as 1,2,2,1, or auto (fwp, nestpipe)",
    "clustering": "how samples are sorted into micro-batches: key-centric or none (methods on the engine)",
    "sync_every": "steps from one averaging of the replicas to the next (2d-sp, nestpipe-2d)",
}
METHOD_KEYS: dict[str, Callable[[str, str], Any]] = {
    "replicas": _positive_int,
    "micro_batches": _cuts,
    "clustering": _one_of("key-centric", "none"),
    "sync_every": _positive_int,
}
TRAINING_HELP = {
    "sparse_optimizer": f"of the embedding tables: {', '.join(SPARSE_OPTIMIZERS)}",
    "sparse_lr": "its learning rate",
    "dense_lr": "learning rate of the dense part's Adam",
    "dtype": f"of parameters and rows: {', '.join(DTYPES)}",
    "device": f"{' or '.join(DEVICES)}",
}
_TRAINING_KEYS: dict[str, Callable[[str, str], Any]] = {
    "sparse_optimizer": _one_of(*SPARSE_OPTIMIZERS),
    "sparse_lr": _rate,
    "dense_lr": _rate,
    "dtype": _one_of(*DTYPES),
    "device": _one_of(*DEVICES),
}
assert set(_TRAINING_KEYS) == {field.name for field in fields(Training)}
