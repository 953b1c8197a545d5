"""Criteo's files against a plain reading of them, and batches as functions of step and rank."""

import gzip
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workloads.batches import plain, rows_of, samples_of
from workloads import registry
from workloads.configs import CRITEO_PRESETS
from workloads.criteo import FEATURES, Criteo
from workloads.criteo_files import find_files, write_clicks
from workloads.interface import Evaluable, SequenceBatch
from workloads.npy import mapped

NUM_ROWS = 700


def random_line(generator: random.Random) -> str:
    integers = [generator.choice(["", "0", "-3", "1", "250", "3000000000"]) for _ in range(13)]
    categories = [generator.choice(["", "00000000", "ffffffff", "0000000a", "68fd1e64"]) for _ in range(26)]
    return "\t".join([str(generator.randrange(2)), *integers, *categories])


LINES = [random_line(random.Random(seed)) for seed in range(NUM_ROWS)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "data"


def create(folder: Path, **settings: str) -> Criteo:
    settings = {"path": str(folder), "batch_size": "8", "hash_rows": "50"} | settings
    cache = folder.parent / "cache"
    workload = registry.create("criteo", settings, seed=2, num_workers=1, cache_dir=cache)
    assert isinstance(workload, Criteo)
    return workload


def take(workload: Criteo, num: int, *, rank: int = 0, num_workers: int = 1) -> list[SequenceBatch]:
    return list(itertools.islice(workload.batches(rank=rank, num_workers=num_workers), num))


def expected_dense(line: str) -> list[float]:
    return [math.log1p(max(int(cell or "0"), 0)) for cell in line.split("\t")[1:14]]


def test_a_sample_is_a_line(folder: Path):
    rows_by_category: dict[tuple[int, str], int] = {}
    for batch in take(create(folder), 60):
        assert batch.dense is not None
        assert batch.dense.dtype == batch.labels.dtype == torch.float32
        rows = [rows_of(batch.sparse_features, feature) for feature in FEATURES]
        for index, sample in enumerate(batch.sample_ids.tolist()):
            cells = LINES[sample].split("\t")
            assert batch.labels[index] == float(cells[0])
            assert batch.dense[index].tolist() == pytest.approx(expected_dense(LINES[sample]), rel=1e-6)
            for field, cell in enumerate(cells[14:]):
                (row,) = rows[field][index]
                assert (row == 0) == (cell == "")
                assert 0 <= row < 50
                # One category of a field has one row, whichever sample it stands in.
                assert rows_by_category.setdefault((field, cell), row) == row
    # Two fields do not share their rows, nor do two categories but by chance (1 in 49).
    distinct = {rows_by_category[field, "68fd1e64"] for field in range(26)}
    assert len(distinct) > 15
    assert sum(rows_by_category[f, "ffffffff"] == rows_by_category[f, "0000000a"] for f in range(26)) < 5


def test_hashed_rows_are_spread_evenly(folder: Path):
    from workloads.criteo_rows import HashedRows

    rows = HashedRows([11]).of(np.arange(26 * 4000, dtype=np.uint32).reshape(4000, 26))
    counts = np.bincount(rows.reshape(-1), minlength=11)
    assert counts[0] == 0
    assert abs(counts[1:] / rows.size - 0.1).max() < 0.005


def test_rows_of_each_field(folder: Path):
    sizes = list(range(2, 28))
    workload = create(folder, hash_rows=",".join(map(str, sizes)))
    model = workload.model(torch.device("cpu"))
    tables = [p.shape[0] for n, p in model.named_parameters() if "embedding" in n]
    assert tables == sizes
    for batch in take(workload, 30):
        for feature, size in zip(FEATURES, sizes, strict=True):
            assert max(row for (row,) in rows_of(batch.sparse_features, feature)) < size


def test_vocabulary(folder: Path):
    workload = create(folder, ids="vocabulary", min_frequency="115", holdout="0.2")
    training = [line.split("\t")[14:] for line in LINES[:560]]
    for field, feature in enumerate(FEATURES):
        column = [cells[field] for cells in training]
        frequent = sorted({cell for cell in column if cell and column.count(cell) >= 115})
        assert workload.num_rows[field] == len(frequent) + 2
        rows = {"": 0} | {cell: 2 + place for place, cell in enumerate(frequent)}
        for batch in take(workload, 5):
            for sample, (row,) in zip(
                batch.sample_ids.tolist(), rows_of(batch.sparse_features, feature), strict=True
            ):
                assert row == rows.get(LINES[sample].split("\t")[14 + field], 1)
    # Some are frequent and some are not, else this shows nothing.
    assert len(set(workload.num_rows)) > 1


def test_made_up_rows_follow_from_the_first(folder: Path):
    sizes = CRITEO_PRESETS["mlperf"]["multi_hot"]
    assert len(sizes) == len(CRITEO_PRESETS["mlperf"]["hash_rows"]) == 26
    single, several = create(folder), create(folder, multi_hot=",".join(map(str, sizes)))
    bags: dict[tuple[str, int], list[int]] = {}
    for one, many in zip(take(single, 20), take(several, 20), strict=True):
        for feature, size in zip(FEATURES, sizes, strict=True):
            for (first,), bag in zip(
                rows_of(one.sparse_features, feature), rows_of(many.sparse_features, feature), strict=True
            ):
                assert len(bag) == size
                assert bag[0] == first
                assert all(0 < row < 50 for row in bag[1:])
                assert bags.setdefault((feature, first), bag) == bag
    assert len({tuple(bag) for (feature, _), bag in bags.items() if feature == FEATURES[20]}) == 5


def test_the_mlperf_preset_has_its_sizes(folder: Path):
    settings = {"path": str(folder), "preset": "mlperf", "batch_size": "5"}
    cache = folder.parent / "cache"
    workload = registry.create("criteo", settings, seed=2, num_workers=1, cache_dir=cache)
    batch = next(workload.batches(rank=0, num_workers=1))
    preset = CRITEO_PRESETS["mlperf"]
    lengths = batch.sparse_features.lengths().view(26, 5)
    assert lengths.tolist() == [[size] * 5 for size in preset["multi_hot"]]
    for feature, num_rows in zip(FEATURES, preset["hash_rows"], strict=True):
        assert batch.sparse_features[feature].values().max() < num_rows
    assert preset["embedding_dim"] == 128


def test_batches_by_step_and_rank(folder: Path):
    whole = take(create(folder, batch_size="12"), 120)
    parts = [take(create(folder, batch_size="4"), 120, rank=rank, num_workers=3) for rank in range(3)]
    for step in (0, 1, 49, 50, 119):
        together = [sample for part in parts for sample in samples_of(part[step]).items()]
        assert together == list(samples_of(whole[step]).items())
    resumed = create(folder, batch_size="12").batches(rank=0, num_workers=1, start_step=77)
    assert plain(next(resumed)) == plain(whole[77])
    samples = [sample for batch in whole for sample in batch.sample_ids.tolist()]
    assert sorted(samples[:600]) == sorted(samples[600:1200]) == list(range(600))
    assert samples[:600] != samples[600:1200]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_held_out_rows_are_evaluated_once(folder: Path, num_workers: int):
    workload = create(folder, holdout="0.1")
    assert isinstance(workload, Evaluable)
    held_out = [
        sample
        for rank in range(num_workers)
        for batch in workload.evaluation_batches(rank=rank, num_workers=num_workers)
        for sample in batch.sample_ids.tolist()
    ]
    assert sorted(held_out) == list(range(630, 700))
    assert workload.num_steps_an_epoch(num_workers) == math.ceil(630 / (8 * num_workers))
    second = workload.training_batches(rank=0, num_workers=num_workers, start_epoch=1)
    first_step = workload.num_steps_an_epoch(num_workers)
    started = workload.batches(rank=0, num_workers=num_workers, start_step=first_step)
    assert plain(next(second)) == plain(next(started))


def test_evaluates_what_it_says(folder: Path):
    """A model that knows the label is right every time."""
    workload = create(folder)

    def results() -> Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]]:
        for batch in workload.evaluation_batches(rank=0, num_workers=1):
            yield batch, torch.zeros(()), 20 * (batch.labels - 0.5)

    result = workload.evaluate(results(), lambda table: iter(()), None)
    assert result.metrics["auc"] == 1.0
    assert result.metrics["normalised_entropy"] < 1e-3
    assert result.sample_ids is not None
    assert result.sample_ids.tolist() == list(range(600, 700))


@pytest.mark.parametrize("model", ["dlrm", "pooled"])
def test_a_model_learns_a_batch_by_heart(folder: Path, model: str):
    workload = create(folder, model=model, embedding_dim="8")
    network = workload.model(torch.device("cpu"))
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    (batch,) = take(workload, 1)
    losses = []
    for _ in range(8):
        loss, logits = network(batch)
        assert logits.shape == (8,)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20])
def test_days_plain_and_compressed(tmp_path: Path, block_bytes: int):
    data = tmp_path / "days"
    data.mkdir()
    for day, part in enumerate(np.array_split(LINES, 12)):
        text = "".join(f"{line}\n" for line in part).encode()
        if day % 2:
            (data / f"day_{day}.gz").write_bytes(gzip.compress(text))
        else:
            (data / f"day_{day}").write_bytes(text)
    (data / "day_x").write_text("not one of them")
    files = find_files(str(data))
    assert [file.stem for file in files] == [f"day_{day}" for day in range(12)]
    write_clicks(files, tmp_path, block_bytes)
    assert mapped(tmp_path / "labels.npy").tolist() == [int(line[0]) for line in LINES]
    categories = mapped(tmp_path / "categories.npy")
    for field in range(26):
        cells = [line.split("\t")[14 + field] for line in LINES]
        assert categories[:, field].tolist() == [int(cell or "0", 16) for cell in cells]
        is_missing = mapped(tmp_path / "missing.npy") >> field & 1
        assert is_missing.tolist() == [cell == "" for cell in cells]


BROKEN = {
    "39 columns, expected 40": lambda cells: cells[:-1],
    "41 columns, expected 40": lambda cells: [*cells, ""],
    "1 columns, expected 40": lambda cells: [",".join(cells)],
    "label is '2', expected 0 or 1": lambda cells: ["2", *cells[1:]],
    "label is '', expected 0 or 1": lambda cells: ["", *cells[1:]],
    "integer_1 is '1.5', expected an integer or nothing": lambda cells: [cells[0], "1.5", *cells[2:]],
    "category_26 is '68fd1e6g', expected up to 8": lambda cells: [*cells[:-1], "68fd1e6g"],
    "category_26 is '068fd1e64', expected up to 8": lambda cells: [*cells[:-1], "068fd1e64"],
}


@pytest.mark.parametrize("line", [1, 500])
@pytest.mark.parametrize(("message", "change"), BROKEN.items(), ids=BROKEN)
def test_a_broken_row_is_named(folder: Path, line: int, message: str, change):
    lines = list(LINES)
    lines[line] = "\t".join(change(lines[line].split("\t")))
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ValueError, match=rf"train\.txt, line {line + 1}: {message}"):
        create(folder)
    assert not [path for path in (folder.parent / "cache").rglob("*") if path.suffix == ".npy"]


def test_settings_and_folders_that_do_not_do(folder: Path, tmp_path: Path):
    for settings, message in (
        ({"ids": "hashed"}, "ids=hashed: expected hash or vocabulary"),
        ({"hash_rows": "5,6"}, "expected 1 or 26 numbers"),
        ({"hash_rows": "1"}, "each 2 or more"),
        ({"multi_hot": "1,2"}, "expected 26 numbers"),
        ({"holdout": "1"}, "less than 1"),
        ({"num_dense": "4"}, "num_dense=4: expected 13"),
        ({"path": ""}, "needs path="),
    ):
        with pytest.raises(ValueError, match=message):
            create(folder, **settings)
    (folder / "day_0").write_text(LINES[0])
    with pytest.raises(ValueError, match="holds several data sets"):
        create(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match=r"neither train\.txt nor day_0"):
        create(empty)
