"""Synthetic samples: functions of (seed, sample id), Zipf keys, log-normal lengths."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.workloads.batches import in_full_precision, plain, rows_of, samples_of, select
from tests.workloads.statistics import distance, follows, normal_cdf, slope
from workloads import registry
from workloads.interface import SequenceBatch
from workloads.synthetic import Synthetic

CPU = torch.device("cpu")


def create(seed: int = 3, **settings: str) -> Synthetic:
    workload = registry.create("synthetic", settings, seed=seed, num_workers=2, cache_dir=Path("/unused"))
    assert isinstance(workload, Synthetic)
    return workload


def take(workload: Synthetic, num: int, *, rank: int = 0, num_workers: int = 1) -> list[SequenceBatch]:
    return list(itertools.islice(workload.batches(rank=rank, num_workers=num_workers), num))


def test_equal_for_equal_seed_step_and_rank_else_different():
    first = [plain(batch) for batch in take(create(preset="tiny"), 4, rank=1, num_workers=2)]
    again = [plain(batch) for batch in take(create(preset="tiny"), 4, rank=1, num_workers=2)]
    assert first == again
    resumed = create(preset="tiny").batches(rank=1, num_workers=2, start_step=3)
    assert plain(next(resumed)) == first[3]
    others = [
        *first[1:],
        plain(take(create(preset="tiny"), 1, rank=0, num_workers=2)[0]),
        plain(take(create(preset="tiny", seed=4), 1, rank=1, num_workers=2)[0]),
    ]
    assert all(other["sparse_features"] != first[0]["sparse_features"] for other in others)


def test_global_batch_does_not_depend_on_the_workers():
    whole = create(preset="multi-table", batch_size="12", num_rows="90")
    parts = create(preset="multi-table", batch_size="4", num_rows="90")
    for step, batch in enumerate(take(whole, 3)):
        shares = [samples_of(take(parts, 3, rank=rank, num_workers=3)[step]) for rank in range(3)]
        assert samples_of(batch) == shares[0] | shares[1] | shares[2]
        assert len(samples_of(batch)) == 12


def test_types_and_shapes():
    workload = create(preset="multi-table", batch_size="7")
    (batch,) = take(workload, 1)
    features = batch.sparse_features
    assert features.keys() == [f"feature_{table}" for table in range(8)]
    assert features.stride() == 7
    assert features.values().dtype == features.lengths().dtype == batch.sample_ids.dtype == torch.int64
    assert 0 <= int(features.values().min()) <= int(features.values().max()) < 50_000
    assert batch.labels.shape == batch.sample_ids.shape == (7,)
    assert set(batch.labels.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(("mean", "sigma"), [(40.0, 0.5), (1.5, 1.0), (0.3, 0.5), (6.0, 0.0)])
def test_lengths_are_log_normal_around_the_mean(mean: float, sigma: float):
    workload = create(batch_size="200000", mean_length=str(mean), sigma=str(sigma), num_rows="5")
    lengths = take(workload, 1)[0].sparse_features.lengths().numpy()
    spread = np.sqrt(mean**2 * (np.exp(sigma**2) - 1) + 0.25)
    assert lengths.mean() == pytest.approx(mean, abs=5 * spread / np.sqrt(len(lengths)))
    assert (lengths == 0).any() == (mean < 6)
    if mean == 40.0:
        smooth = lengths + np.random.default_rng(0).uniform(-0.5, 0.5, size=len(lengths))
        assert distance((np.log(smooth) - np.log(40) + 0.125) / 0.5, normal_cdf) < 0.005


def test_keys_are_zipf_in_a_permuted_order():
    workload = create(num_rows="1000", num_tables="2", batch_size="5000")
    features = take(workload, 1)[0].sparse_features
    orders = []
    for key in features.keys():  # noqa: SIM118
        counts = np.bincount(features[key].values().numpy(), minlength=1000)
        orders.append(np.argsort(-counts, kind="stable")[:50])
        by_rank = np.sort(counts)[::-1][:50]
        assert slope(np.log(np.arange(1, 51)), np.log(by_rank)) == pytest.approx(-1.0, abs=0.05)
        # Hot rows are spread over the table, not at its start.
        assert follows(orders[-1] / 1000, lambda x: x)
    assert set(orders[0][:5].tolist()) != set(orders[1][:5].tolist())


@pytest.mark.parametrize("num_rows", [1, 2, 63, 1000])
def test_permutation_is_a_bijection(num_rows: int):
    workload = create(num_rows=str(num_rows), num_tables="3", exponent="0", batch_size="4000")
    features = take(workload, 1)[0].sparse_features
    for key in features.keys():  # noqa: SIM118
        assert sorted(set(features[key].values().tolist())) == list(range(num_rows))
    again = create(num_rows=str(num_rows), num_tables="3", exponent="0", batch_size="4000")
    assert torch.equal(take(again, 1)[0].sparse_features.values(), features.values())


def test_label_is_a_function_of_the_sample():
    (batch,) = take(create(preset="multi-table", batch_size="300", mean_length="0.5"), 1)
    features = batch.sparse_features
    samples = zip(*(rows_of(features, key) for key in features.keys()), strict=True)  # noqa: SIM118
    for label, sample in zip(batch.labels.tolist(), samples, strict=True):
        keys = [key for row in sample for key in row]
        assert label == float(sum(key % 2 for key in keys) > len(keys) / 2)
    assert 0.2 < float(batch.labels.mean()) < 0.8


def test_weights_are_equal_on_every_call():
    workload = create(preset="tiny")
    torch.manual_seed(1)
    first = workload.model(CPU)
    torch.manual_seed(2)
    second, double, other = (
        workload.model(CPU),
        create(preset="tiny").model(CPU, torch.float64),
        create(preset="tiny", seed=4).model(CPU),
    )
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])
        assert torch.equal(weight.double(), double.state_dict()[name])
        if "weight" in name:
            assert not torch.equal(weight, other.state_dict()[name])
            assert weight.std() > 0


@pytest.mark.parametrize("preset", ["tiny", "multi-table"])
def test_loss_and_gradients_against_a_loop(preset: str):
    workload = create(preset=preset, mean_length="1", batch_size="9", num_rows="30")
    model = in_full_precision(workload.model(CPU, torch.float64))
    reference = workload.model(CPU, torch.float64)
    (batch,) = take(workload, 1)
    loss, logits = model(batch)
    loss.backward()
    expected = _reference_loss(reference, batch)
    expected.backward()
    assert logits.shape == (9,)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    for (name, ours), (_, theirs) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        assert ours.grad is not None, name
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-14, msg=name)


def _reference_loss(model: torch.nn.Module, batch: SequenceBatch) -> torch.Tensor:
    weights = dict(model.named_parameters())
    features = batch.sparse_features
    losses = []
    for index, label in enumerate(batch.labels.tolist()):
        parts = []
        for number, key in enumerate(features.keys()):
            table = weights[f"embedding_collection.embeddings.table_{number}.weight"]
            row = rows_of(features, key)[index]
            parts.append(table[row].mean(dim=0) if row else torch.zeros(table.shape[1], dtype=table.dtype))
        x = torch.cat(parts)
        layers = sorted({int(name.split(".")[2]) for name in weights if name.startswith("head.mlp")})
        for layer in layers:
            x = weights[f"head.mlp.{layer}.weight"] @ x + weights[f"head.mlp.{layer}.bias"]
            x = x * torch.sigmoid(x) if layer != layers[-1] else x
        p = torch.sigmoid(x[0])
        losses.append(-(label * p.log() + (1 - label) * (1 - p).log()))
    return torch.stack(losses).mean()


def test_micro_batches_add_up():
    workload = create(preset="tiny", mean_length="1")
    model = in_full_precision(workload.model(CPU, torch.float64))
    (batch,) = take(workload, 1)
    loss, logits = model(batch)
    cuts = [[3, 0, 15], [1], [2, *range(4, 15)]]
    parts = [model(select(batch, cut)) for cut in cuts]
    weighted = sum(len(cut) / 16 * part[0] for cut, part in zip(cuts, parts, strict=True))
    torch.testing.assert_close(loss, weighted, rtol=1e-13, atol=0)
    for cut, part in zip(cuts, parts, strict=True):
        torch.testing.assert_close(logits[cut], part[1], rtol=1e-12, atol=1e-14)


def test_it_can_be_learnt():
    workload = create(preset="tiny", num_rows="50", batch_size="256")
    model = workload.model(CPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for batch in take(workload, 80):
        loss, _ = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


def test_a_batch_costs_less_than_two_milliseconds():
    workload = create()
    batches = workload.batches(rank=0, num_workers=2)
    costs_ms = []
    for _ in range(30):
        start = time.thread_time()
        batch = next(batches)
        costs_ms.append(1e3 * (time.thread_time() - start))
    assert batch.sparse_features.values().numel() > 15_000
    # Processor time and the least of many, as whatever else runs on the machine only adds.
    assert min(costs_ms) < 2.0
