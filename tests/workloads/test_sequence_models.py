"""What holds for every sequence model, whatever its block."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.workloads.batches import pinned, rows_of, select
from tests.workloads.sequence_models import (
    LENGTHS,
    MAX_LENGTH,
    MODELS,
    NUM_ITEMS,
    SIDES,
    config_of,
    create,
    uneven_batch,
)
from workloads.interface import SequenceBatch, SideTable

WHOLE = len(LENGTHS)
CUTS = ([6, 0], [2], [5, 7, 3], [1, 4])

every_model = pytest.mark.parametrize("name", MODELS)


@every_model
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_samples_do_not_see_each_other(name: str, dropout: float):
    """A sample's output and loss are the same alone, in a micro-batch and in the whole batch."""
    model = create(name, SIDES, num_heads=2, dropout=dropout, embedding_dropout=dropout / 2)
    batch = uneven_batch(SIDES)
    loss, last = model(batch)
    parts = [model(select(batch, cut)) for cut in CUTS]
    for cut, (_, output) in zip(CUTS, parts, strict=True):
        torch.testing.assert_close(output, last[cut], rtol=1e-11, atol=1e-12)
    weighted = sum(len(cut) / WHOLE * part[0] for cut, part in zip(CUTS, parts, strict=True))
    torch.testing.assert_close(weighted, loss, rtol=1e-12, atol=1e-13)


@every_model
def test_gradients_of_micro_batches_add_up(name: str):
    model, batch = create(name, SIDES, dropout=0.25, embedding_dropout=0.25), uneven_batch(SIDES)
    model(batch)[0].backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    for cut in CUTS:
        (len(cut) / WHOLE * model(select(batch, cut))[0]).backward()
    for parameter_name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[parameter_name], rtol=1e-9, atol=1e-12, msg=parameter_name
        )


@every_model
@pytest.mark.parametrize("rate", ["dropout", "embedding_dropout"])
def test_dropout_is_a_function_of_the_seeds(name: str, rate: str):
    model, batch = create(name, (), **{rate: 0.5}), uneven_batch()
    first, again = model(batch)[1], model(batch)[1]
    assert torch.equal(first, again)
    assert batch.seeds is not None
    changed = dataclasses.replace(batch, seeds=batch.seeds.clone())
    assert changed.seeds is not None
    changed.seeds[3] += 1
    other = model(changed)[1]
    assert not torch.allclose(other[3], first[3])
    assert torch.equal(other[:3], first[:3])
    model.eval()
    evaluated = model(batch)[1]
    assert not torch.allclose(evaluated[3], first[3])
    assert torch.equal(create(name)(batch)[1], evaluated)


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes(name: str, dtype: torch.dtype):
    config_type, build = MODELS[name]
    model = build(config_type(max_length=MAX_LENGTH), [NUM_ITEMS], 1, SIDES).to(dtype)
    loss, last = model(uneven_batch(SIDES))
    loss.backward()
    assert loss.dtype == last.dtype == dtype
    assert all(p.grad is not None and p.grad.dtype == dtype for p in model.parameters())


@every_model
def test_autocast_rounds_the_blocks_and_not_the_loss(name: str):
    config_type, build = MODELS[name]
    config = config_type(max_length=MAX_LENGTH, dropout=0.2, embedding_dropout=0.2, positions=True)
    model, batch = build(config, [NUM_ITEMS], 1, SIDES), uneven_batch(SIDES)
    expected, _ = model(batch)
    inside: list[torch.dtype] = []
    linear = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    linear.register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, last = model(batch)
    loss.backward()
    assert inside == [torch.bfloat16]
    assert loss.dtype == last.dtype == torch.float32
    # A rounding of 2^-9 in the states is one of up to 20 * 2^-9 in the logits, whose temperature is 0.05.
    assert 0 < (loss - expected).abs() < 20 * 2**-9
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@every_model
def test_all_samples_too_short(name: str):
    model, batch = create(name, SIDES), uneven_batch(SIDES)
    short = [i for i, row in enumerate(rows_of(batch.sparse_features, "item")) if len(row) < 2]
    loss, last = model(select(batch, short))
    loss.backward()
    assert len(last) == 3
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@every_model
def test_a_batch_without_negatives_has_the_same_states(name: str):
    """Evaluation has no use for negatives."""
    model = create(name)
    model.eval()
    loss, last = model(uneven_batch(num_negatives=[0] * WHOLE))
    assert loss.item() == 0
    assert torch.equal(last, model(uneven_batch())[1])


@every_model
def test_misuse_is_named(name: str):
    batch = uneven_batch(SIDES)
    with pytest.raises(ValueError, match="9 items, more than the model's max_length=8"):
        create(name, SIDES, max_length=8)(batch)
    batch.seeds = None
    for rate in ("dropout", "embedding_dropout"):
        with pytest.raises(ValueError, match="seeds"):
            create(name, SIDES, **{rate: 0.5})(batch)
    for side, expected in zip(
        SIDES, ("'user' needs one key a sample", "'tab' needs one key for each"), strict=True
    ):
        wrong = dataclasses.replace(side, per_token=not side.per_token)
        with pytest.raises(ValueError, match=expected):
            create(name, [side])(uneven_batch([wrong]))
    for taken in ("item", "negative"):
        with pytest.raises(ValueError, match=f"side feature '{taken}'"):
            create(name, [SideTable(taken, 3)])


@every_model
def test_known_lengths_are_not_read(name: str, monkeypatch: pytest.MonkeyPatch):
    """Where the host knows the lengths, it sees misuse without them, and the results are the same."""
    model, batch = create(name, SIDES), uneven_batch(SIDES)
    expected = model(batch)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "equal", None)
        patch.setattr(torch.Tensor, "max", None)
        loss, last = model(pinned(batch))
        with pytest.raises(ValueError, match="9 items, more than the model's max_length=8"):
            create(name, SIDES, max_length=8)(pinned(batch))
        for side, message in zip(
            SIDES, ("'user' needs one key a sample", "'tab' needs one key for each"), strict=True
        ):
            wrong = dataclasses.replace(side, per_token=not side.per_token)
            with pytest.raises(ValueError, match=message):
                create(name, [side])(pinned(uneven_batch([wrong])))
    assert torch.equal(loss, expected[0])
    assert torch.equal(last, expected[1])


@every_model
def test_times_are_needed_only_where_they_are_used(name: str):
    batch = dataclasses.replace(uneven_batch(), context=None)
    if name == "sasrec":
        create(name)(batch)
        return
    with pytest.raises(ValueError, match="context"):
        create(name)(batch)


@every_model
def test_no_side_is_today_s_model(name: str):
    """Sides change neither the other weights' names nor, but for theirs, the parameters' number."""
    with_sides = dict(create(name, SIDES).named_parameters())
    without = dict(create(name).named_parameters())
    own = {f"embedding_collection.embeddings.{side.name}.weight" for side in SIDES}
    assert set(with_sides) - set(without) == own
    assert set(without) < set(with_sides)


@every_model
def test_it_learns_a_cycle(name: str):
    """Items that follow each other in a fixed cycle are predicted after a few steps."""
    num_items, length = 15, 12
    config = config_of(name, embedding_dim=16, num_blocks=1, max_length=length, temperature=0.05)
    model = MODELS[name][1](config, [num_items], 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for step in range(40):
        loss, _ = model(_cycle(num_items, length, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def _cycle(num_items: int, length: int, step: int) -> SequenceBatch:
    """A sample from each start of the cycle, with other negatives at each step."""
    generator = torch.Generator().manual_seed(step)
    items = (torch.arange(num_items).unsqueeze(1) + torch.arange(length)) % num_items
    negatives = torch.randint(num_items, (num_items, num_items), generator=generator)
    lengths = torch.full((num_items,), length)
    return SequenceBatch(
        sparse_features=KeyedJaggedTensor(
            keys=["item", "negative"],
            values=torch.cat([items.flatten(), negatives.flatten()]),
            lengths=torch.cat([lengths, torch.full((num_items,), num_items)]),
        ),
        context=KeyedJaggedTensor(
            keys=["timestamp"], values=3_600 * torch.arange(num_items * length), lengths=lengths
        ),
        labels=torch.zeros(num_items),
        sample_ids=torch.arange(num_items),
    )
