"""Which samples of a batch have which keys in common: what clustering works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

Ints = NDArray[np.int64]

# The golden ratio's fraction keeps the upper bits of the products of different ids apart, a second odd
# number those of equal ids in different tables.
_ID_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TABLE_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True)
class SharedKeys:
    """The keys that two or more samples of a batch have; with the others no order can help.

    `samples` [num_occurrences] are the samples of the first key, each once, then those of the second, and
    so on; `frequencies` [num_keys] is how many each key has. `num_unique` counts all keys of the batch.
    """

    samples: Ints
    frequencies: Ints
    num_samples: int
    num_unique: int

    @classmethod
    def of(cls, features: KeyedJaggedTensor, tables: Mapping[str, str] | None = None) -> SharedKeys:
        """The shared keys of a batch; a key is an id of a table.

        `tables` names the table that a feature reads; a feature that it leaves out has a table of its own.
        """
        stride = features.stride()
        # One number for a key and a sample, so that one sort does it all: samples in the lowest bits.
        bits = np.uint64(max(stride - 1, 1).bit_length())
        codes = _hashed_keys(features, tables or {}) >> bits << bits
        codes |= _samples_of(features).astype(np.uint64)
        codes.sort()
        codes = codes[_starts_run(codes)]
        first = np.flatnonzero(_starts_run(codes >> bits))
        frequencies = np.diff(first, append=len(codes))
        is_shared = frequencies > 1
        samples = codes[np.repeat(is_shared, frequencies)] & ((np.uint64(1) << bits) - np.uint64(1))
        return cls(samples.astype(np.int64), frequencies[is_shared], stride, len(frequencies))

    @property
    def keys(self) -> Ints:
        """The number, from 0, of each occurrence's key: [num_occurrences]."""
        return np.repeat(np.arange(len(self.frequencies)), self.frequencies)

    def by_sample(self) -> tuple[Ints, Ints]:
        """Keys [num_occurrences] of the first sample, then of the second and so on, and where each one's
        begin, and the last one's end [num_samples + 1]."""
        order = np.argsort(self.samples, kind="stable")
        num_keys = np.bincount(self.samples, minlength=self.num_samples)
        return self.keys[order], np.concatenate([[0], np.cumsum(num_keys)])

    def num_rows(self, order: Ints, sizes: Sequence[int]) -> int:
        """Unique keys of each micro-batch, summed over those of `sizes` that `order` [num_samples] makes."""
        parts = micro_batches_of(order, sizes)
        present = np.zeros(len(self.frequencies) * len(sizes), dtype=np.bool_)
        present[self.keys * len(sizes) + parts[self.samples]] = True
        return self.num_unique - len(self.frequencies) + int(np.count_nonzero(present))


def micro_batches_of(order: Ints, sizes: Sequence[int]) -> Ints:
    """The micro-batch of each sample, where the first of `sizes` samples of `order` make the first:
    [num_samples]."""
    parts = np.empty(len(order), dtype=np.int64)
    parts[order] = np.repeat(np.arange(len(sizes)), sizes)
    return parts


def _hashed_keys(features: KeyedJaggedTensor, tables: Mapping[str, str]) -> NDArray[np.uint64]:
    """A number of 64 bits for each value [num_values], equal for equal ids of one table.

    Cutting off its lower bits could make two keys one, which costs a little quality and is unlikely.
    """
    names = [tables.get(name, f"of feature {name}") for name in features.keys()]  # noqa: SIM118
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    starts = np.array([numbers[name] for name in names], dtype=np.uint64) * _TABLE_FACTOR
    num_values = _lengths_of(features).reshape(len(names), features.stride()).sum(axis=1)
    ids = features.values().cpu().numpy().astype(np.int64, copy=False).view(np.uint64)
    return ids * _ID_FACTOR + np.repeat(starts, num_values)


def _lengths_of(features: KeyedJaggedTensor) -> Ints:
    return features.lengths().cpu().numpy().astype(np.int64, copy=False)


def _samples_of(features: KeyedJaggedTensor) -> Ints:
    """The sample of each value: [num_values]."""
    return np.repeat(np.tile(np.arange(features.stride()), len(features.keys())), _lengths_of(features))


def _starts_run(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each of the sorted `values` differs from the one before: [num_values]."""
    starts = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return starts
