"""The batch as TorchRec's pipelines use it."""

import dataclasses

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from workloads.interface import SequenceBatch


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


class Recorder:
    """Stands for the parts of a batch and remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def record_stream(self, stream: object) -> None:
        self.asked.append(stream)

    def pin_memory(self) -> str:
        return "pinned"


@pytest.mark.parametrize("full", [True, False])
def test_reaches_every_part(full: bool):
    names = [f.name for f in dataclasses.fields(SequenceBatch)]
    parts = {name: Recorder() if full or name not in ("context", "seeds") else None for name in names}
    whole = SequenceBatch(**parts)  # type: ignore[arg-type]
    whole.record_stream("stream")
    assert all(part is None or part.asked == ["stream"] for part in parts.values())
    pinned = whole.pin_memory()
    assert {name: getattr(pinned, name) for name in names} == {
        name: part and "pinned" for name, part in parts.items()
    }
