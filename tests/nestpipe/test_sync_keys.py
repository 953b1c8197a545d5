"""What a batch's jagged tensors know of their keys before they are moved to a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe.batching import sync_keys


@dataclass
class Batch:
    keys: Any
    label: torch.Tensor


def jagged() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(["a", "b"], torch.arange(4), lengths=torch.tensor([1, 0, 2, 1]))


@pytest.mark.parametrize(
    "nest",
    [
        lambda keys: keys,
        lambda keys: Batch(keys, torch.zeros(2)),
        lambda keys: {"context": [keys], "name": "x"},
        lambda keys: (3, Batch({"times": keys}, torch.zeros(2))),
    ],
    ids=["keys", "dataclass", "dict", "nest"],
)
def test_all_of_them_are_counted(nest: Any) -> None:
    keys = jagged()
    assert keys.offset_per_key_or_none() is None
    sync_keys(nest(keys))
    assert keys.offset_per_key_or_none() == [0, 1, 4]
    assert keys.to(torch.device("meta")).offset_per_key_or_none() == [0, 1, 4]
