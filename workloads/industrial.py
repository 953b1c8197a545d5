"""Industrial-like samples: a huge table of items, users with interests, contexts, and a drifting hot set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workloads.bijection import Bijection
from workloads.configs import INDUSTRIAL_CONTEXTS, IndustrialConfig
from workloads.hashing import below, hash_of, normal, uniform
from workloads.interface import SequenceBatch, SideTable, Workload
from workloads.item_draws import ItemDraws
from workloads.jagged import offsets_of, positions_of
from workloads.models.configs import SequenceModelConfig
from workloads.zipf import ZipfRanks

Ints = NDArray[np.int64]

# What a hash is drawn for: the streams must not overlap.
_LENGTH, _ROUNDING, _ITEM, _USER, _CONTEXT, _GAP, _LABEL, _TASTE, _NEGATIVE, _MODEL = range(10)

# Users differ in activity much less than items and contexts in popularity.
_USER_EXPONENT, _CONTEXT_EXPONENT = 0.5, 1.0
_FIRST_STEP_S = 1_600_000_000
_SECONDS_A_STEP = 60
_MEAN_GAP_LOG = 6.0
_GAP_SIGMA = 2.0
# How strongly items, user and contexts decide a click: the best possible AUC is then about 0.75.
_TASTE_WEIGHT = 1.0


class Industrial:
    """Samples that are functions of (seed, sample id, step) alone.

    Sample `i` of worker `rank` at `step` has the id `(step * num_workers + rank) * batch_size + i`, so a
    global batch is the same samples however many workers share it. The features are `item`, `user` and the
    contexts, with a table each; ids of `item` are hashed to `hash_rows` rows where that is set. A sequence
    model has the items as its sequence, `user` and contexts as side tables of one key a sample, and uniform
    negatives.
    """

    name = "industrial"

    def __init__(
        self,
        config: IndustrialConfig,
        model_config: Any,
        build_model: Callable[..., nn.Module],
        *,
        seed: int,
    ) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._is_sequence_model = isinstance(model_config, SequenceModelConfig)
        self._max_length = model_config.max_length if self._is_sequence_model else None
        self._num_negatives = model_config.num_negatives if self._is_sequence_model else 0
        self._build_model = build_model
        self._seed = seed
        self._items = ItemDraws(config, seed)
        self._num_item_rows = config.hash_rows or config.num_items
        sizes = {"user": config.num_users, **dict(list(INDUSTRIAL_CONTEXTS.items())[: config.num_contexts])}
        self._sides = [SideTable(name, num_rows) for name, num_rows in sizes.items()]

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The click or sequence model; see `Workload.model`."""
        if self._is_sequence_model:
            model = self._build_model([self._num_item_rows], self._seed, sides=self._sides)
        else:
            num_rows = [self._num_item_rows, *(side.num_rows for side in self._sides)]
            names = ["item", *(side.name for side in self._sides)]
            model = self._build_model(num_rows, self._seed, features=names)
        return model.to(device=device, dtype=dtype)

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[SequenceBatch]:
        """Endless batches of one worker; see `Workload.batches`."""
        for step in itertools.count(start_step):
            first = (step * num_workers + rank) * self.batch_size
            yield self._batch(step, np.arange(first, first + self.batch_size, dtype=np.int64))

    def _batch(self, step: int, sample_ids: Ints) -> SequenceBatch:
        lengths = self._lengths(sample_ids)
        sides = [self._side_keys(number, sample_ids) for number in range(len(self._sides))]
        items = self._item_keys(step, sample_ids, lengths, sides[0])
        parts = {"item": (items, lengths)}
        if self._is_sequence_model:
            parts["negative"] = self._negatives(step, sample_ids)
        one_each = np.ones(len(sample_ids), dtype=np.int64)
        parts |= {side.name: (keys, one_each) for side, keys in zip(self._sides, sides, strict=True)}
        return SequenceBatch(
            sparse_features=_keyed(parts),
            context=self._context(step, sample_ids, lengths),
            labels=torch.from_numpy(self._labels(sample_ids, items, lengths, sides)),
            sample_ids=torch.from_numpy(sample_ids),
            seeds=torch.from_numpy(hash_of(self._seed, _MODEL, step, sample_ids).view(np.int64)),
        )

    def _lengths(self, sample_ids: Ints) -> Ints:
        """Items of each sample [num_samples], log-normal, at most as many as the model takes."""
        sigma = self.config.sigma
        centre = np.log(self.config.mean_length) - sigma**2 / 2
        exact = np.exp(centre + sigma * normal(hash_of(self._seed, _LENGTH, sample_ids)))
        # Rounding down a number shifted by a uniform one keeps the mean, and allows empty samples.
        lengths = np.floor(exact + uniform(hash_of(self._seed, _ROUNDING, sample_ids))).astype(np.int64)
        return lengths if self._max_length is None else np.minimum(lengths, self._max_length)

    def _side_keys(self, number: int, sample_ids: Ints) -> Ints:
        """Keys [num_samples] of the user (0) or a context (from 1)."""
        num_rows = self._sides[number].num_rows
        exponent = _USER_EXPONENT if number == 0 else _CONTEXT_EXPONENT
        ranks = ZipfRanks(num_rows, exponent).draw(hash_of(self._seed, _USER, number, sample_ids))
        return Bijection.of(num_rows, self._seed, _CONTEXT, number).at(ranks)

    def _item_keys(self, step: int, sample_ids: Ints, lengths: Ints, users: Ints) -> Ints:
        states = np.repeat(hash_of(self._seed, _ITEM, sample_ids), lengths)
        items = self._items.draw(states, positions_of(lengths), np.repeat(users, lengths), step)
        # Ids are spread over the table by a bijection, so their remainders are a hash.
        return items % self._num_item_rows

    def _negatives(self, step: int, sample_ids: Ints) -> tuple[Ints, Ints]:
        """Rows drawn uniformly, and how many each sample has."""
        draws = np.arange(self._num_negatives, dtype=np.int64)
        hashes = hash_of(self._seed, _NEGATIVE, step, sample_ids[:, np.newaxis], draws)
        num_each = np.full(len(sample_ids), self._num_negatives, dtype=np.int64)
        return below(hashes, self._num_item_rows).reshape(-1), num_each

    def _context(self, step: int, sample_ids: Ints, lengths: Ints) -> KeyedJaggedTensor | None:
        if not self._is_sequence_model:
            return None
        return _keyed({"timestamp": (self._timestamps_s(step, sample_ids, lengths), lengths)})

    def _timestamps_s(self, step: int, sample_ids: Ints, lengths: Ints) -> Ints:
        """Seconds of each token, ascending in a sample, the last at the step's time: [lengths.sum()]."""
        samples = np.repeat(sample_ids, lengths)
        deviates = normal(hash_of(self._seed, _GAP, samples, positions_of(lengths)))
        elapsed = np.cumsum(np.exp(_MEAN_GAP_LOG + _GAP_SIGMA * deviates).astype(np.int64))
        ends = offsets_of(lengths)[1:] - 1
        last = np.repeat(elapsed[ends[lengths > 0]], lengths[lengths > 0])
        return _FIRST_STEP_S + step * _SECONDS_A_STEP - (last - elapsed)

    def _labels(
        self, sample_ids: Ints, items: Ints, lengths: Ints, sides: Sequence[Ints]
    ) -> NDArray[np.float32]:
        """Clicks, 0 or 1: a coin whose odds are a sum over hidden tastes of the sample's rows."""
        whole = self._tastes(0, items)
        of_items = np.add.reduceat(np.append(whole, 0.0), offsets_of(lengths)[:-1]) * (lengths > 0)
        logits = of_items / np.sqrt(np.maximum(lengths, 1))
        for number, keys in enumerate(sides, start=1):
            logits = logits + self._tastes(number, keys) / np.sqrt(len(sides))
        chance = 1.0 / (1.0 + np.exp(-_TASTE_WEIGHT * logits))
        return (uniform(hash_of(self._seed, _LABEL, sample_ids)) < chance).astype(np.float32)

    def _tastes(self, table: int, keys: Ints) -> NDArray[np.float64]:
        """A fixed number of mean 0 and variance 1 for each row of a table."""
        return np.sqrt(12.0) * (uniform(hash_of(self._seed, _TASTE, table, keys)) - 0.5)


def _keyed(parts: dict[str, tuple[Ints, Ints]]) -> KeyedJaggedTensor:
    """Values and lengths of each key as one KeyedJaggedTensor."""
    return KeyedJaggedTensor(
        keys=list(parts),
        values=torch.from_numpy(np.concatenate([values for values, _ in parts.values()])),
        lengths=torch.from_numpy(np.concatenate([lengths for _, lengths in parts.values()])),
    )


def build(
    config: IndustrialConfig,
    model_config: Any,
    build_model: Callable[..., nn.Module],
    *,
    seed: int,
    num_workers: int,
    cache_dir: Path,
) -> Workload:
    """The workload for the registry; it depends on neither the cache nor the number of workers."""
    return Industrial(config, model_config, build_model, seed=seed)
