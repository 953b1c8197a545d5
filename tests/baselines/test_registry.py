"""Names, summaries and plugins of the methods."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from baselines import registry

OWN = ["torchrec", "torchrec-nodedup", "torchrec-sparse-dist", "2d-sp"]
ENGINE = ["uniemb", "sync", "dbp", "fwp", "nestpipe", "nestpipe-chosen", "nestpipe-2d"]


def test_names_come_in_display_order() -> None:
    assert registry.names()[: len(OWN + ENGINE)] == OWN + ENGINE
    assert list(registry.summaries()) == registry.names()


def test_listing_imports_no_torch() -> None:
    code = (
        "import sys; from baselines import registry; registry.names(); registry.summaries();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("name", OWN)
def test_a_method_says_what_the_table_says(name: str) -> None:
    method = registry.get(name)
    assert method.name == name
    assert method.summary == registry.summaries()[name]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("torchrec-sparsedist", "did you mean 'torchrec-sparse-dist'"), ("zzz", "known methods: torchrec,")],
)
def test_an_unknown_name_is_an_error_with_the_way_out(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"unknown method {name!r}: {hint}"):
        registry.get(name)


def test_third_parties_plug_in_but_do_not_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("mine", "baselines.torchrec_base:TORCHREC_NODEDUP", registry.ENTRY_POINT_GROUP),
        EntryPoint("torchrec", "nowhere:NOTHING", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert registry.names() == [*OWN, *ENGINE, "mine"]
    assert registry.get("mine").name == "torchrec-nodedup"
    assert registry.get("torchrec").name == "torchrec"
    assert registry.summaries()["mine"] == "plugin, baselines.torchrec_base:TORCHREC_NODEDUP"
