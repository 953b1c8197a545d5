"""Named sizes of models: what they hold, in what order settings win, and how a user meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workloads import registry
from workloads.configs import SyntheticConfig
from workloads.models.configs import DlrmConfig

NAME = "for-tests"


def build_nothing(config: SyntheticConfig, model_config: Any, build_model: Any, **others: Any) -> Any:
    """Stands for a workload: the configs that it would be built from."""
    return config, model_config


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function from settings to the configs of a workload with defaults and a preset of its own."""
    source = registry.Source(
        summary="",
        config=SyntheticConfig,
        builder=f"{__name__}:build_nothing",
        models=("pooled", *registry.SEQUENCE_MODELS, "dlrm"),
        defaults={"embedding_dim": 3, "cross_rank": 4, "cross_layers": 5, "num_rows": 6},
        presets={"plain": {}, "rank": {"cross_rank": 7, "num_rows": 8}},
    )
    monkeypatch.setattr(registry, "WORKLOADS", {NAME: source})

    def create(**settings: str) -> Any:
        return registry.create(NAME, settings, seed=0, num_workers=1, cache_dir=tmp_path)

    return create


def test_settings_win_over_preset_over_variant_over_the_workload_s_defaults(configs: Any):
    def dlrm(**settings: str) -> tuple[int, int, int, int]:
        config, model = configs(model="dlrm", **settings)
        assert isinstance(model, DlrmConfig)
        return model.embedding_dim, model.cross_rank, model.cross_layers, config.num_rows

    assert dlrm() == dlrm(variant="laptop") == (3, 4, 5, 6)
    assert dlrm(variant="mlperf") == (128, 512, 3, 6)
    assert dlrm(variant="mlperf", preset="rank") == (128, 7, 3, 8)
    assert dlrm(variant="mlperf", preset="rank", cross_rank="9", num_rows="10") == (128, 9, 3, 10)


def test_published_sizes(configs: Any):
    def sizes(model: str, variant: str) -> tuple[Any, ...]:
        _, config = configs(model=model, variant=variant)
        names = ("max_length", "embedding_dim", "num_blocks", "num_heads", "dropout", "num_negatives")
        return tuple(getattr(config, name) for name in (*names, "temperature"))

    for model in registry.SEQUENCE_MODELS:
        assert sizes(model, "ml-1m") == (200, 50, 2, 1, 0.2, 128, 0.05)
    assert sizes("fuxi", "kuairand-27k") == (1024, 128, 4, 4, 0.5, 128, 0.05)
    assert configs(model="fuxi", variant="kuairand-27k")[1].qk_dim == 32
    assert configs(model="sasrec", variant="ml-1m")[1].activation == "relu"


@pytest.mark.parametrize("name", registry.MODELS)
def test_the_first_variant_is_the_default(configs: Any, name: str):
    variants = registry.MODELS[name].variants
    if variants:
        assert variants[next(iter(variants))] == {}
    for variant in variants:
        configs(model=name, variant=variant)


def test_variants_are_listed():
    described = {(item.kind, item.name): item.settings for item in registry.describe()}
    for name, model in registry.MODELS.items():
        listed = [s.meaning for s in described["model", name] if s.name == "variant"]
        assert listed == ([f"one of {', '.join(model.variants)}"] if model.variants else [])
    (of_workload,) = [s for s in described["workload", "movielens"] if s.name == "variant"]
    assert (of_workload.default, of_workload.meaning) == ("laptop", "one of laptop, ml-1m")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model": "hstu", "variant": "ml-m1"}, "unknown variant 'ml-m1'; did you mean 'ml-1m'"),
        (
            {"model": "fuxi", "variant": "mlperf"},
            r"unknown variant 'mlperf'.*valid: kuairand-27k, laptop, ml-1m",
        ),
        ({"model": "pooled", "variant": "ml-1m"}, "'variant'"),
        ({"model": "fuxi", "hidden": "3"}, "'hidden'"),
        ({"model": "fuxi", "qk_dim": "0"}, "qk_dim=0: expected more than 0"),
        ({"model": "hstu", "embedding_dropout": "1"}, "embedding_dropout=1.0"),
        ({"model": "sasrec", "activation": "gelu"}, "activation=gelu: expected one of silu, relu"),
        ({"model": "dlrm", "over": ""}, "over"),
        ({"model": "dlrm", "bottom": "3,0"}, "bottom"),
        ({"model": "dlrm", "num_dense": "-1"}, "num_dense=-1: expected 0 or more"),
    ],
)
def test_mistakes_are_named(configs: Any, settings: dict[str, str], expected: str):
    with pytest.raises(ValueError, match=expected):
        configs(**settings)
