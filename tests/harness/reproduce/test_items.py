"""Which cells each item has, and which runs it asks for."""

from __future__ import annotations

import pytest

from harness import paper
from harness.emulation import profiles
from harness.reproduce import items
from harness.reproduce.items import SIZES, Item
from harness.reproduce.measured import Run
from harness.reproduce.metrics import METRICS

EVERY = (*items.get("all"), items.ablation())


def columns(item: Item) -> dict[str, list[str]]:
    """Columns by row, as cells will name them."""
    found: dict[str, list[str]] = {}
    for line in item.lines:
        prefix = f"{line.group}:" if line.group else ""
        found.setdefault(line.row, []).extend(prefix + metric for metric in line.metrics)
    return found


def one(name: str) -> Item:
    (item,) = items.get(name)
    return item


def test_table2_has_the_papers_rows_and_ours() -> None:
    found = columns(one("table2"))
    assert list(found) == [
        "torchrec",
        "2d-sp",
        "uniemb",
        "nestpipe",
        "torchrec-nodedup",
        "torchrec-sparse-dist",
        "nestpipe-chosen",
        "nestpipe-2d",
    ]
    assert all(own == ["step_ms", "speedup", "lookup_ms", "comm_ms"] for own in found.values())


def test_table3_has_five_sizes() -> None:
    found = columns(one("table3"))
    assert list(found) == ["torchrec", "2d-sp", "uniemb", "nestpipe"]
    metrics = ("step_ms", "qps", "speedup", "efficiency")
    expected = [f"{size}:{metric}" for size in SIZES for metric in metrics]
    assert all(own == expected for own in found.values())


def test_table4_compares_communication() -> None:
    found = columns(one("table4"))
    assert list(found) == ["torchrec", "2d-sp", "nestpipe", "nestpipe-2d"]
    assert all(own == ["total_comm_ms", "exposed_comm_ms", "qps", "efficiency"] for own in found.values())
    # The efficiency is relative to the smallest size, which must be measured too.
    assert {run.profile for run in one("table4").runs} == {"paper-npu-128", "paper-npu-1536"}


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.name)
def test_every_cell_of_the_paper_has_a_place(item: Item) -> None:
    places = {(row, column) for row, own in columns(item).items() for column in own}
    assert set(paper.load(item.name).cells) <= places
    assert len(places) == sum(len(line.metrics) for line in item.lines)


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.name)
def test_every_run_is_one_that_a_source_can_do(item: Item) -> None:
    assert len(set(item.runs)) == len(item.runs)
    for run in item.runs:
        profiles.get(run.profile, dict(run.profile_overrides))
    assert {metric for line in item.lines for metric in line.metrics} <= set(METRICS)


def test_all_shares_its_runs() -> None:
    runs = [run for item in items.get("all") for run in item.runs]
    distinct = set(runs)
    assert len(distinct) < len(runs)
    # Table II's eight methods, four of them at four more sizes, and Table IV's 2D method at the smallest.
    assert sum(not run.settings and not run.profile_overrides for run in distinct) == 8 + 4 * 4 + 1


def test_fig9_sweeps_micro_batches_with_and_without_clustering() -> None:
    runs = one("fig9").runs
    assert len(runs) == 8
    settings = [dict(run.settings) for run in runs]
    for clustering in (None, "none"):
        alike = [own for own in settings if own.get("clustering") == clustering]
        assert [own["micro_batches"] for own in alike] == ["4", "8", "16", "32"]
    assert {line.group for line in one("fig9").lines} == {"128", "64", "32", "16"}


def test_fig10_scales_communication_with_dim_and_dense_with_the_rest() -> None:
    plain = profiles.get("paper-npu-1536")
    runs = {line.group: line.run for line in one("fig10").lines if line.row == "nestpipe"}
    assert dict(runs["dim-1024"].profile_overrides)["comm_ms"] == pytest.approx(plain.comm_ms * 1024 / 768)
    assert dict(runs["layers-2"].profile_overrides) == {"dense_ms": plain.dense_ms / 2}
    assert dict(runs["length-2048"].profile_overrides) == {"dense_ms": plain.dense_ms * 2}
    assert runs["layers-4"] == Run("nestpipe", "paper-npu-1536")
    # Scaled by the plain profile: twice the dense work must show as twice the milliseconds.
    assert all(not line.dense_from.profile_overrides for line in one("fig10").lines)


def test_an_unknown_item_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'table2'"):
        items.get("tabel2")
