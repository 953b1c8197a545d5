"""Names, settings and their errors, as a user meets them."""

import subprocess
import sys
from pathlib import Path

import pytest

from workloads import registry
from workloads.interface import Workload
from workloads.synthetic import Synthetic


def create(tmp_path: Path, workload: str = "synthetic", **settings: str) -> Workload:
    return registry.create(workload, settings, seed=3, num_workers=2, cache_dir=tmp_path)


def test_listing_needs_no_torch():
    code = (
        "import sys; from workloads import registry; registry.names(); registry.describe(); "
        "sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_description_is_complete():
    described = {(item.kind, item.name): item for item in registry.describe()}
    assert set(described) == {
        *(("workload", name) for name in registry.WORKLOADS),
        *(("model", name) for name in registry.MODELS),
    }
    assert all(item.summary for item in described.values())
    assert all(setting.meaning for item in described.values() for setting in item.settings)
    defaults = {setting.name: setting.default for setting in described["workload", "kuairand"].settings}
    assert defaults["max_length"] == "128"
    assert defaults["model"] == "hstu"


def test_default_is_the_lookup_bound_preset(tmp_path: Path):
    default, preset = create(tmp_path), create(tmp_path, preset="lookup-bound")
    assert isinstance(default, Synthetic)
    assert isinstance(preset, Synthetic)
    assert default.config == preset.config
    assert (default.config.num_rows, default.batch_size, default.config.exponent) == (200_000, 512, 1.0)


def test_explicit_keys_win_over_the_preset(tmp_path: Path):
    workload = create(tmp_path, preset="tiny", batch_size="5", hidden="7,3", sigma="1e-1")
    assert isinstance(workload, Synthetic)
    assert workload.config.num_rows == 1_000
    assert workload.batch_size == 5
    assert workload.config.sigma == 0.1
    batch = next(workload.batches(rank=0, num_workers=1))
    assert [
        p.shape[0] for n, p in workload.model(batch.labels.device).named_parameters() if "weight" in n
    ] == [
        1_000,
        7,
        3,
        1,
    ]


def test_described_defaults_can_be_typed(tmp_path: Path):
    (described,) = (item for item in registry.describe() if item.name == "synthetic")
    typed = create(tmp_path, **{setting.name: setting.default for setting in described.settings})
    default = create(tmp_path)
    assert isinstance(typed, Synthetic)
    assert isinstance(default, Synthetic)
    assert typed.config == default.config


@pytest.mark.parametrize("preset", registry.WORKLOADS["synthetic"].presets)
def test_every_preset_builds(tmp_path: Path, preset: str):
    batch = next(create(tmp_path, preset=preset).batches(rank=1, num_workers=2))
    assert batch.sparse_features.values().numel() > 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"workload": "synthetc"}, "unknown workload 'synthetc'; did you mean 'synthetic'"),
        ({"workload": "q"}, rf"unknown workload 'q' \(valid: {', '.join(registry.names())}\)"),
        ({"num_row": "3"}, "unknown setting of workload 'synthetic' 'num_row'; did you mean 'num_rows'"),
        ({"preset": "tinny"}, "unknown preset 'tinny'; did you mean 'tiny'"),
        ({"model": "hstu"}, "unknown model 'hstu'"),
        ({"num_rows": "many"}, "num_rows='many': expected an integer"),
        ({"sigma": "nan"}, "sigma='nan': expected a finite number"),
        ({"hidden": "64,x"}, "hidden='64,x': expected integers separated by commas"),
        ({"hidden": "64,0"}, "hidden"),
        ({"num_rows": "0"}, "num_rows=0: expected more than 0"),
        ({"exponent": "-1"}, "exponent=-1.0: expected 0 or more"),
        ({"workload": "kuairand", "preset": "tiny"}, "unknown setting of workload 'kuairand' 'preset'"),
        ({"workload": "kuairand"}, "kuairand.* needs path="),
        ({"workload": "movielens", "num_heads": "3"}, "num_heads=3: expected a divisor of embedding_dim=64"),
        ({"workload": "movielens", "dropout": "1"}, "dropout=1.0"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, settings: dict[str, str], expected: str):
    with pytest.raises(ValueError, match=expected):
        create(tmp_path, **settings)


def test_negative_seed(tmp_path: Path):
    with pytest.raises(ValueError, match="seed=-1: expected 0 or more"):
        registry.create("synthetic", {}, seed=-1, num_workers=1, cache_dir=tmp_path)
