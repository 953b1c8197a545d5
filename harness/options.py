"""The `--set key=value` settings: which key belongs to the workload, the methods or the training."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

SPARSE_OPTIMIZERS = ("rowwise_adagrad", "sgd", "adagrad", "adam")
DENSE_OPTIMIZERS = ("adam", "adamw")
LR_SCHEDULES = ("constant", "warmup-linear", "warmup-cosine")
CLIP_SCOPES = ("dense", "all")
AUTOCASTS = ("none", "bfloat16")
DTYPES = ("float32", "float64")
DEVICES = ("cpu", "cuda")
NO_KEYS: Mapping[str, Callable[[str, str], Any]] = {}


@dataclass(frozen=True)
class Training:
    """What all methods of a run share: optimizers, learning rates, number format and device."""

    sparse_optimizer: str = "rowwise_adagrad"
    sparse_lr: float = 0.02
    sparse_weight_decay: float = 0.0
    dense_optimizer: str = "adam"
    dense_lr: float = 1e-3
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    lr_schedule: str = "constant"
    warmup_steps: int = 0
    lr_steps: int = 0
    """Steps of the whole schedule; 0: those of the run."""
    max_grad_norm: float = 0.0
    """0: gradients are not clipped."""
    clip_scope: str = "dense"
    autocast: str = "none"
    dtype: str = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.autocast != "none" and self.dtype != "float32":
            raise ValueError(f"autocast={self.autocast} leaves {self.dtype} as it is: use dtype=float32")
        if self.lr_schedule == "constant" and self.lr_steps:
            raise ValueError("lr_steps needs an lr_schedule that ends, such as warmup-cosine")


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
    pairs: Sequence[str],
    workload_keys: Sequence[str],
    cluster_keys: Sequence[str] = (),
    plugin_keys: Mapping[str, Callable[[str, str], Any]] = NO_KEYS,
) -> Settings:
    """Sort `key=value` strings; a ValueError names an unknown key's nearest and a bad value's form.

    Values of workload keys stay strings: the workload itself parses them. `plugin_keys` are those of methods
    of third parties, which may not take a name that has a meaning already.
    """
    method_keys = {**METHOD_KEYS, **plugin_keys}
    for key in plugin_keys:
        if key in METHOD_KEYS or key in _TRAINING_KEYS or key in workload_keys:
            raise ValueError(f"a method outside of this project declares the setting {key!r}, which is taken")
    training: dict[str, Any] = {}
    method: dict[str, Any] = {}
    workload: dict[str, str] = {}
    cluster: dict[str, float] = {}
    for key, text in map(_split, pairs):
        if key in training or key in method or key in workload or key in cluster:
            raise ValueError(f"--set {key} is given twice")
        if key in workload_keys:
            workload[key] = text
        elif key in method_keys:
            method[key] = method_keys[key](key, text)
        elif key in _TRAINING_KEYS:
            training[key] = _TRAINING_KEYS[key](key, text)
        elif key in cluster_keys:
            cluster[key] = _rate(key, text)
        else:
            known = sorted([*workload_keys, *method_keys, *_TRAINING_KEYS, *cluster_keys])
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


def _whole(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{key} must be a whole number of at least 0, got {text!r}")
    return int(text)


def _share(key: str, text: str) -> float:
    value = _rate(key, text)
    if value >= 1.0:
        raise ValueError(f"{key} must be less than 1, got {text!r}")
    return value


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
    "sparse_weight_decay": "of the rows that a step touches: L2, in adam decoupled",
    "dense_optimizer": f"of the dense part: {', '.join(DENSE_OPTIMIZERS)}",
    "dense_lr": "its learning rate",
    "weight_decay": "of the dense part: L2, in adamw decoupled",
    "beta1": "decay of the first moment, in every adam and adamw",
    "beta2": "decay of the second",
    "lr_schedule": f"of both learning rates: {', '.join(LR_SCHEDULES)}",
    "warmup_steps": "steps in which the learning rates rise to their values",
    "lr_steps": "steps after which the schedule ends; 0: with the run",
    "max_grad_norm": "largest global norm of the gradients of a step; 0: not clipped",
    "clip_scope": "whose gradients that norm is: dense, or all (with the rows'; methods on the engine)",
    "autocast": f"number format of matrix products: {', '.join(AUTOCASTS)}",
    "dtype": f"of parameters and rows: {', '.join(DTYPES)}",
    "device": f"{' or '.join(DEVICES)}",
}
_TRAINING_KEYS: dict[str, Callable[[str, str], Any]] = {
    "sparse_optimizer": _one_of(*SPARSE_OPTIMIZERS),
    "sparse_lr": _rate,
    "sparse_weight_decay": _rate,
    "dense_optimizer": _one_of(*DENSE_OPTIMIZERS),
    "dense_lr": _rate,
    "weight_decay": _rate,
    "beta1": _share,
    "beta2": _share,
    "lr_schedule": _one_of(*LR_SCHEDULES),
    "warmup_steps": _whole,
    "lr_steps": _whole,
    "max_grad_norm": _rate,
    "clip_scope": _one_of(*CLIP_SCOPES),
    "autocast": _one_of(*AUTOCASTS),
    "dtype": _one_of(*DTYPES),
    "device": _one_of(*DEVICES),
}
assert set(_TRAINING_KEYS) == {field.name for field in fields(Training)}
