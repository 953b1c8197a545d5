"""The CPU kernel for index dedup against a slow version that shares no code with it."""

from __future__ import annotations

import pytest
import torch

from baselines import fbgemm_cpu


def layout(table_sizes: list[int], features_per_table: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """What TorchRec passes: each feature's key offset with the total, and each table's span of features."""
    cumsum, spans = [], [0]
    start = 0
    for size, num_features in zip(table_sizes, features_per_table, strict=True):
        cumsum += [start] * num_features
        spans += [spans[-1] + num_features] * num_features
        start += size
    return torch.tensor([*cumsum, start]), torch.tensor(spans)


def jagged(table_sizes: list[int], features_per_table: list[int], lengths: torch.Tensor) -> torch.Tensor:
    """Random ids, each below its table's size."""
    sizes = [s for s, count in zip(table_sizes, features_per_table, strict=True) for _ in range(count)]
    per_feature = lengths.view(len(sizes), -1).sum(dim=1).tolist()
    parts = [torch.randint(0, size, (n,)) for size, n in zip(sizes, per_feature, strict=True)]
    return torch.cat(parts)


def check(
    table_sizes: list[int], features_per_table: list[int], lengths: torch.Tensor, indices: torch.Tensor
) -> None:
    fbgemm_cpu.register()
    cumsum, spans = layout(table_sizes, features_per_table)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    out_lengths, out_offsets, unique, inverse = torch.ops.fbgemm.jagged_unique_indices(
        cumsum, spans, offsets, indices
    )
    assert {t.dtype for t in (out_lengths, out_offsets, unique, inverse)} == {torch.int64}
    assert torch.equal(unique[inverse], indices)
    assert torch.equal(out_offsets[1:] - out_offsets[:-1], out_lengths)
    assert out_offsets[0] == 0
    assert out_lengths.shape == lengths.shape
    batch_size = lengths.numel() // sum(features_per_table)
    feature, place = 0, 0
    for num_features in features_per_table:
        samples = slice(feature * batch_size, (feature + num_features) * batch_size)
        ids = indices[offsets[samples.start] : offsets[samples.stop]].tolist()
        of_table = unique[place : place + len(set(ids))].tolist()
        assert sorted(of_table) == sorted(set(ids))
        spread = out_lengths[samples].tolist()
        assert sum(spread) == len(of_table)
        assert spread == sorted(spread, reverse=True)
        assert not spread or spread[0] - spread[-1] <= 1
        feature, place = feature + num_features, place + len(of_table)
    assert unique.numel() == place


@pytest.mark.parametrize("scale", [1, 3_000_000], ids=["scratch", "sort"])
@pytest.mark.parametrize(
    ("table_sizes", "features_per_table"),
    [([7], [1]), ([7], [3]), ([5, 1, 90], [1, 1, 1]), ([5, 63, 2], [2, 1, 3]), ([4, 4], [1, 2])],
)
@pytest.mark.parametrize("batch_size", [1, 5, 63])
def test_matches_sets(
    table_sizes: list[int], features_per_table: list[int], batch_size: int, scale: int
) -> None:
    torch.manual_seed(batch_size)
    sizes = [size * scale for size in table_sizes]
    lengths = torch.randint(0, 6, (sum(features_per_table) * batch_size,))
    check(sizes, features_per_table, lengths, jagged(sizes, features_per_table, lengths))


@pytest.mark.parametrize("table_size", [3, 30_000_000], ids=["scratch", "sort"])
def test_all_equal(table_size: int) -> None:
    check([table_size], [2], torch.tensor([500, 0, 0, 500]), torch.full((1000,), 2))


@pytest.mark.parametrize("table_size", [1000, 30_000_000], ids=["scratch", "sort"])
def test_all_unique(table_size: int) -> None:
    check([table_size, 5], [1, 1], torch.tensor([400, 600, 0, 0]), torch.randperm(1000))


@pytest.mark.parametrize("batch_size", [0, 1, 4])
def test_empty(batch_size: int) -> None:
    check([7, 9], [2, 1], torch.zeros(3 * batch_size, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def test_both_algorithms_are_reached() -> None:
    keys = torch.randint(0, 50, (200,)).numpy()
    for find in (fbgemm_cpu._unique_by_scratch, lambda keys, _: fbgemm_cpu._unique_by_sort(keys)):
        representatives, inverse = find(keys, 50)
        assert (keys[representatives][inverse] == keys).all()
        assert len(representatives) == len(set(keys.tolist()))


@pytest.mark.parametrize("bad", [-1, 9, 2**40])
def test_an_id_outside_of_its_table_is_an_error(bad: int) -> None:
    cumsum, spans = layout([7, 9], [1, 1])
    with pytest.raises(ValueError, match="ids of feature 1 in this lookup"):
        fbgemm_cpu.jagged_unique_indices(cumsum, spans, torch.tensor([0, 1, 2]), torch.tensor([0, bad]))


def test_registering_twice_is_harmless() -> None:
    assert fbgemm_cpu.register() is fbgemm_cpu.register()
