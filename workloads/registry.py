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
    CRITEO_PRESETS,
    INDUSTRIAL_PRESETS,
    SYNTHETIC_PRESETS,
    CriteoConfig,
    IndustrialConfig,
    InteractionsConfig,
    KuaiRandConfig,
    LogConfig,
    SyntheticConfig,
)
from workloads.models.configs import (
    DLRM_VARIANTS,
    FUXI_VARIANTS,
    HSTU_VARIANTS,
    SASREC_VARIANTS,
    DlrmConfig,
    FuxiConfig,
    HstuConfig,
    PooledConfig,
    SasrecConfig,
)
from workloads.parsing import parse_into, require, unknown

if TYPE_CHECKING:
    from workloads.interface import Workload


@dataclass(frozen=True)
class Model:
    """A registered model; `builder` is `module:function`, imported when it is built.

    The function is called with (config, num_rows, seed) and returns the nn.Module. What a workload calls
    is the same without the config. Sequence models: `build_model([num_items], seed, sides=[SideTable, ...])`
    with one looked-up feature and table a side beside the features `item` and `negative`. Click models
    (pooled, dlrm): `build_model(num_rows, seed, features=names)`, one feature and table a name, by default
    `feature_0`, `feature_1`, ...; `dlrm` reads `batch.dense` of its config's `num_dense` columns. Both
    keywords may be left out. `variants` are named sizes: each replaces fields of the config, the first is
    the config's own defaults.
    """

    summary: str
    config: type
    builder: str
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


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


SEQUENCE_MODELS = ("hstu", "fuxi", "sasrec")

MODELS: Mapping[str, Model] = {
    "pooled": Model(
        "mean of a sample's rows and a small SiLU MLP", PooledConfig, "workloads.models.pooled:build"
    ),
    "dlrm": Model(
        "DLRM-v2: numeric and pooled features, low-rank cross network, clicks",
        DlrmConfig,
        "workloads.models.dlrm:build",
        DLRM_VARIANTS,
    ),
    "hstu": Model(
        "HSTU blocks on item sequences, next-item loss",
        HstuConfig,
        "workloads.models.hstu:build",
        HSTU_VARIANTS,
    ),
    "fuxi": Model(
        "FuXi-alpha blocks on item sequences, next-item loss",
        FuxiConfig,
        "workloads.models.fuxi:build",
        FUXI_VARIANTS,
    ),
    "sasrec": Model(
        "SASRec's softmax attention on item sequences, next-item loss",
        SasrecConfig,
        "workloads.models.sasrec:build",
        SASREC_VARIANTS,
    ),
}

WORKLOADS: Mapping[str, Source] = {
    "synthetic": Source(
        summary="Zipf keys, log-normal lengths; needs no data",
        config=SyntheticConfig,
        builder="workloads.synthetic:build",
        models=("pooled", "dlrm"),
        # Its samples have keys only.
        defaults={"num_dense": 0},
        presets=SYNTHETIC_PRESETS,
    ),
    "industrial": Source(
        summary="a huge table of items, users with interests, contexts, drift; needs no data",
        config=IndustrialConfig,
        builder="workloads.industrial:build",
        models=("pooled", "dlrm", *SEQUENCE_MODELS),
        # Its samples have no numeric features.
        defaults={"num_dense": 0},
        presets=INDUSTRIAL_PRESETS,
    ),
    "kuairand": Source(
        summary="raw logs of KuaiRand 27K, 1K or Pure (path=FILE-OR-FOLDER)",
        config=KuaiRandConfig,
        builder="workloads.kuairand:build",
        models=SEQUENCE_MODELS,
        defaults={"max_length": 128},
    ),
    "movielens": Source(
        summary="MovieLens ratings (path=FILE-OR-FOLDER, or what `nestpipe data fetch ml-100k` fetched)",
        config=InteractionsConfig,
        builder="workloads.movielens:build",
        models=SEQUENCE_MODELS,
    ),
    "log": Source(
        summary="your own interactions, CSV or Parquet (path=FILE-OR-FOLDER, user=, item=, time= columns)",
        config=LogConfig,
        builder="workloads.log:build",
        models=SEQUENCE_MODELS,
    ),
    "criteo": Source(
        summary="Criteo's clicks, Kaggle or Terabyte (path=FILE-OR-FOLDER)",
        config=CriteoConfig,
        builder="workloads.criteo:build",
        models=("dlrm", "pooled"),
        presets=CRITEO_PRESETS,
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
    """The workload `name` with the user's `settings`; explicit keys win over a `preset` and a `variant`.

    ValueError for an unknown workload, model, preset, variant or key (with the nearest name) and for a value
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
        Description("model", name, model.summary, (*_variant_setting(model), *_settings(model.config())))
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
    """Both configs: defaults, then the workload's own, the model's variant, the preset, `settings`."""
    valid = {setting.name for setting in _source_settings(source, model)}
    for key in settings:
        if key not in valid:
            raise unknown(f"setting of workload {name!r}", key, valid)
    # A workload's defaults are laptop sizes, so a variant that the user names wins over them.
    replaced = {
        **source.defaults,
        **_named("variant", model.variants, settings),
        **_named("preset", source.presets, settings),
    }
    return _configured(source.config, replaced, settings), _configured(model.config, replaced, settings)


def _named(
    kind: str, choices: Mapping[str, Mapping[str, Any]], settings: Mapping[str, str]
) -> Mapping[str, Any]:
    """What the chosen preset or variant replaces."""
    name = settings.get(kind)
    if name is None:
        return {}
    if name not in choices:
        raise unknown(kind, name, choices)
    return choices[name]


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


def _source_settings(source: Source, model: Model | None = None) -> tuple[Setting, ...]:
    """The workload's own settings, then those of a model, its default one, as this workload sets them."""
    model = model or MODELS[source.models[0]]
    settings = [Setting("model", source.models[0], f"one of {', '.join(source.models)}")]
    settings += _choice("preset", source.presets)
    settings += _settings(source.config(), source.defaults)
    return (*settings, *_variant_setting(model), *_settings(model.config(), source.defaults))


def _variant_setting(model: Model) -> list[Setting]:
    return _choice("variant", model.variants)


def _choice(kind: str, choices: Mapping[str, Mapping[str, Any]]) -> list[Setting]:
    """The setting that names a preset or variant, by default the first; none where there is no choice."""
    return [Setting(kind, next(iter(choices)), f"one of {', '.join(choices)}")] if choices else []
