"""What the host knows of the lengths of a batch's keys, so that a model need not read them from a device."""

from __future__ import annotations

from dataclasses import dataclass

from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass(frozen=True)
class KeyLengths:
    """How many values each sample has under one key of a batch."""

    longest: int
    """0 where there are no samples."""
    is_one_each: bool
    """Whether every sample has exactly one."""
    same_as: str
    """The batch's first key under which every sample has as many."""


def lengths_by_key(keys: KeyedJaggedTensor) -> dict[str, KeyLengths]:
    """The lengths of every key of `keys`, which are in host memory."""
    lengths = keys.lengths().reshape(len(keys.keys()), keys.stride()).numpy()
    first: dict[bytes, str] = {}
    return {
        key: KeyLengths(
            longest=int(row.max(initial=0)),
            is_one_each=bool((row == 1).all()),
            same_as=first.setdefault(row.tobytes(), key),
        )
        for key, row in zip(keys.keys(), lengths, strict=True)
    }
