"""Names of workloads and models, what can be set on them, and how they are built."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.configs import (
    SYNTHETIC_PRESETS,
    HstuConfig,
    InteractionsConfig,
    PooledConfig,
    SyntheticConfig,
)
from workloads.parsing import parse_into, require, unknown

if TYPE_CHECKING:
    from workloads.interface import Workload


@dataclass(frozen=True)
class Model:
    """A registered model; `builder` is `module:function`, imported when it is built.

    The function is called with (config, num_rows of each table, seed) and returns the nn.Module.
    """

    summary: str
    config: type
    builder: str


@dataclass(frozen=True)
class Source:
    """A registered workload; `builder` is `module:function`, imported when it is built.

    The function is called with (config, model config, build_model, seed=, num_workers=, cache_dir=),
    where `build_model(num_rows, seed)` makes the model. `defaults` replaces fields of either config.
    """

    summary: str
    config: type
    builder: str
    models: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


MODELS: Mapping[str, Model] = {
    "pooled": Model(
        "mean of a sample's rows and a small SiLU MLP", PooledConfig, "workloads.models.pooled:build"
    ),
    "hstu": Model("HSTU blocks on item sequences, next-item loss", HstuConfig, "workloads.models.hstu:build"),
}

WORKLOADS: Mapping[str, Source] = {
    "synthetic": Source(
        summary="Zipf keys, log-normal lengths; needs no data",
        config=SyntheticConfig,
        builder="workloads.synthetic:build",
        models=("pooled",),
        presets=SYNTHETIC_PRESETS,
    ),
    "kuairand": Source(
        summary="raw logs of KuaiRand 27K, 1K or Pure (path=FILE-OR-FOLDER)",
        config=InteractionsConfig,
        builder="workloads.kuairand:build",
        models=("hstu",),
        defaults={"max_length": 128},
    ),
    "movielens": Source(
        summary="MovieLens ratings (path=FILE-OR-FOLDER, or what `nestpipe data fetch ml-100k` fetched)",
        config=InteractionsConfig,
        builder="workloads.movielens:build",
        models=("hstu",),
    ),
}


@dataclass(frozen=True)
class Setting:
    """One thing that can be set, for listings; `default` is what a user would type for it."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Description:
    """A workload or a model, for listings; `kind` is the one or the other."""

    kind: str
    name: str
    summary: str
    settings: tuple[Setting, ...]


def names() -> list[str]:
    """The names of the workloads."""
    return sorted(WORKLOADS)


def create(
    name: str, settings: Mapping[str, str], *, seed: int, num_workers: int, cache_dir: Path
) -> Workload:
    """The workload `name` with the user's `settings`; explicit keys win over a `preset`.

    ValueError for an unknown workload, model, preset or key (with the nearest name) and for a value
    that does not parse or fit.
    """
    if name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    require(seed >= 0, "seed", seed, "0 or more")
    source = WORKLOADS[name]
    model = _model_of(source, settings)
    config, model_config = _resolve(name, source, model, dict(settings))
    build = _load(source.builder)
    build_model = partial(_load(model.builder), model_config)
    workload: Workload = build(
        config, model_config, build_model, seed=seed, num_workers=num_workers, cache_dir=cache_dir
    )
    return workload


def describe() -> list[Description]:
    """Every workload and model with its settings and their defaults; imports no torch."""
    workloads = [
        Description("workload", name, source.summary, _source_settings(source))
        for name, source in sorted(WORKLOADS.items())
    ]
    models = [
        Description("model", name, model.summary, _settings(model.config()))
        for name, model in sorted(MODELS.items())
    ]
    return workloads + models


def _load(target: str) -> Callable[..., Any]:
    module, function = target.split(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded


def _model_of(source: Source, settings: Mapping[str, str]) -> Model:
    name = settings.get("model", source.models[0])
    if name not in source.models:
        raise unknown("model", name, source.models)
    return MODELS[name]


def _resolve(name: str, source: Source, model: Model, settings: dict[str, str]) -> tuple[Any, Any]:
    """Both configs: defaults, then the workload's own defaults, then the preset, then `settings`."""
    valid = {item.name for item in (*_source_settings(source), *_settings(model.config()))}
    for key in settings:
        if key not in valid:
            raise unknown(f"setting of workload {name!r}", key, valid)
    preset = settings.get("preset")
    if preset is not None and preset not in source.presets:
        raise unknown("preset", preset, source.presets)
    replaced = {**source.defaults, **(source.presets[preset] if preset is not None else {})}
    return _configured(source.config, replaced, settings), _configured(model.config, replaced, settings)


def _configured(config_type: type, replaced: Mapping[str, Any], settings: dict[str, str]) -> Any:
    fields = {f.name for f in dataclasses.fields(config_type)}
    values = {key: value for key, value in replaced.items() if key in fields}
    return config_type(**{**values, **parse_into(config_type, settings)})


def _settings(config: Any, replaced: Mapping[str, Any] | None = None) -> tuple[Setting, ...]:
    values = {**dataclasses.asdict(config), **(replaced or {})}
    return tuple(
        Setting(f.name, _typed(values[f.name]), f.metadata["meaning"]) for f in dataclasses.fields(config)
    )


def _typed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _source_settings(source: Source) -> tuple[Setting, ...]:
    """The workload's own settings, then those of its default model as this workload sets them."""
    settings = [Setting("model", source.models[0], f"one of {', '.join(source.models)}")]
    if source.presets:
        settings.append(Setting("preset", next(iter(source.presets)), f"one of {', '.join(source.presets)}"))
    settings += _settings(source.config(), source.defaults)
    return (*settings, *_settings(MODELS[source.models[0]].config(), source.defaults))
