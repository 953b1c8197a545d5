"""The batch as TorchRec's pipelines use it."""

import copy
import dataclasses

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from nestpipe.batching import select_samples
from tests.workloads.batches import pinned
from workloads.interface import SequenceBatch
from workloads.key_lengths import KeyLengths


def jagged(key: str) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(keys=[key], values=torch.arange(3), lengths=torch.tensor([1, 0, 2]))


def batch(*, full: bool) -> SequenceBatch:
    return SequenceBatch(
        sparse_features=jagged("item"),
        context=jagged("timestamp") if full else None,
        labels=torch.zeros(3),
        sample_ids=torch.arange(3),
        seeds=torch.arange(3) if full else None,
    )


@pytest.mark.parametrize("full", [True, False])
def test_moves_every_part(full: bool):
    original = batch(full=full)
    assert isinstance(original, Pipelineable)
    moved = original.to(torch.device("meta"), non_blocking=True)
    assert isinstance(moved, SequenceBatch)
    for field in dataclasses.fields(moved):
        value = getattr(moved, field.name)
        if getattr(original, field.name) is None:
            assert value is None
        elif isinstance(value, KeyedJaggedTensor):
            assert value.values().is_meta
            assert value.lengths().is_meta
        else:
            assert value.is_meta
    assert not original.labels.is_meta


def tensors_of(batch: SequenceBatch) -> dict[str, torch.Tensor]:
    """Every tensor of a batch."""
    found: dict[str, torch.Tensor] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, KeyedJaggedTensor):
            found |= {f"{field.name}/values": value.values(), f"{field.name}/lengths": value.lengths()}
        elif value is not None:
            found[field.name] = value
    return found


@pytest.mark.parametrize("full", [True, False])
def test_reaches_every_part(full: bool, monkeypatch: pytest.MonkeyPatch):
    original = batch(full=full)
    asked: list[int] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: asked.append(id(tensor)))
    original.record_stream("stream")
    assert sorted(asked) == sorted(id(tensor) for tensor in tensors_of(original).values())
    in_pinned_memory = tensors_of(pinned(original))
    assert in_pinned_memory.keys() == tensors_of(original).keys()
    for name, tensor in tensors_of(original).items():
        assert torch.equal(in_pinned_memory[name], tensor)
        assert in_pinned_memory[name] is not tensor


def uneven() -> SequenceBatch:
    """Samples of 3, 1 and 2 items, each with as many tabs and of one user."""
    keys = KeyedJaggedTensor(
        keys=["item", "user", "tab"],
        values=torch.arange(15),
        lengths=torch.tensor([3, 1, 2, 1, 1, 1, 3, 1, 2]),
    )
    return SequenceBatch(keys, None, torch.zeros(3), torch.arange(3))


LENGTHS = {
    "item": KeyLengths(longest=3, is_one_each=False, same_as="item"),
    "user": KeyLengths(longest=1, is_one_each=True, same_as="user"),
    "tab": KeyLengths(longest=3, is_one_each=False, same_as="item"),
}


def test_a_pinned_batch_and_its_copies_know_their_lengths():
    original = uneven()
    known = pinned(original)
    for each in (known, known.to(torch.device("meta"), non_blocking=True)):
        assert {key: each.lengths_of(key) for key in LENGTHS} == LENGTHS
        assert each.lengths_of("absent") is None
    assert {key: original.lengths_of(key) for key in LENGTHS} == dict.fromkeys(LENGTHS)


def test_other_samples_have_other_lengths():
    """Nothing that was known of a batch is believed of a part of it, however the part was made."""
    known = pinned(uneven())
    part = select_samples(known, torch.tensor([1, 2]), 3)
    replaced = dataclasses.replace(known, sparse_features=part.sparse_features)
    assigned = copy.copy(known)
    assigned.sparse_features = part.sparse_features
    for each in (part, replaced, assigned, part.to(torch.device("cpu"))):
        assert each.lengths_of("item") is None
    found = pinned(part).lengths_of("item")
    assert found is not None
    assert found.longest == 2


def test_lengths_of_no_samples():
    none = pinned(select_samples(uneven(), torch.arange(0), 3))
    for key in LENGTHS:
        assert none.lengths_of(key) == KeyLengths(longest=0, is_one_each=True, same_as="item")
