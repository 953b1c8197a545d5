"""Batches of users' sequences with sampled negatives, for the models that predict the next item."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workloads.configs import HstuConfig, InteractionsConfig
from workloads.hashing import below, hash_of
from workloads.histories import Histories
from workloads.interface import SequenceBatch
from workloads.jagged import positions_of

# What a hash is drawn for: the streams must not overlap.
_NEGATIVE, _MODEL = range(2)

_LARGEST_DEFAULT_BATCH = 64


class SequenceWorkload:
    """One sample is a user's most recent `max_length` items, the oldest first.

    A run goes through all users in an order that is a function of (seed, pass), pass after pass; worker
    `rank` takes its part of each global batch. A sample's negatives and seed are functions of (seed,
    step, user) alone, and its id is the user's index. The default batch size is at most 64 and at most
    the users divided by the workers, so that no global batch is longer than a pass.
    """

    def __init__(
        self,
        name: str,
        histories: Histories,
        config: InteractionsConfig,
        model_config: HstuConfig,
        build_model: Callable[[Sequence[int], int], nn.Module],
        *,
        seed: int,
        num_workers: int,
    ) -> None:
        self.name = name
        self.histories = histories
        fitting = max(1, min(_LARGEST_DEFAULT_BATCH, histories.num_users // num_workers))
        self.batch_size = config.batch_size or fitting
        self._max_length = model_config.max_length
        self._num_negatives = model_config.num_negatives
        self._build_model = build_model
        self._seed = seed

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The sequence model; see `Workload.model`."""
        return self._build_model([self.histories.num_items], self._seed).to(device=device, dtype=dtype)

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[SequenceBatch]:
        """Endless batches of one worker; see `Workload.batches`."""
        users = ShuffledPasses(self.histories.num_users, self._seed)
        for step in itertools.count(start_step):
            first = (step * num_workers + rank) * self.batch_size
            yield self._batch(step, users.at(np.arange(first, first + self.batch_size, dtype=np.int64)))

    def _batch(self, step: int, users: NDArray[np.int64]) -> SequenceBatch:
        lengths, tokens = self._recent(users)
        negatives = self._negatives(step, users)
        item_lengths = torch.from_numpy(lengths)
        negative_lengths = torch.full_like(item_lengths, self._num_negatives)
        values = np.concatenate([self.histories.items[tokens], negatives])
        return SequenceBatch(
            sparse_features=KeyedJaggedTensor(
                keys=["item", "negative"],
                values=torch.from_numpy(values),
                lengths=torch.cat([item_lengths, negative_lengths]),
            ),
            context=KeyedJaggedTensor(
                keys=["timestamp"],
                values=torch.from_numpy(np.asarray(self.histories.timestamps_s[tokens])),
                lengths=item_lengths,
            ),
            # Next-item models take their targets from the sequence itself.
            labels=torch.zeros(len(users)),
            sample_ids=torch.from_numpy(users),
            seeds=torch.from_numpy(hash_of(self._seed, _MODEL, step, users).view(np.int64)),
        )

    def _recent(self, users: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Length of each user's sample and where its tokens lie in the histories."""
        ends = self.histories.offsets[users + 1]
        starts = np.maximum(self.histories.offsets[users], ends - self._max_length)
        lengths = ends - starts
        return lengths, np.repeat(starts, lengths) + positions_of(lengths)

    def _negatives(self, step: int, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Items drawn uniformly, `num_negatives` a user: [len(users) * num_negatives]."""
        draws = np.arange(self._num_negatives, dtype=np.int64)
        hashes = hash_of(self._seed, _NEGATIVE, step, users[:, np.newaxis], draws)
        return below(hashes, self.histories.num_items).reshape(-1)


class ShuffledPasses:
    """The endless sequence of 0 to num - 1 in a new order each pass, by position."""

    def __init__(self, num: int, seed: int) -> None:
        self._num = num
        self._seed = seed
        self._orders: dict[int, NDArray[np.int64]] = {}

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """What stands at each of `positions` (from 0, ascending)."""
        passes, places = np.divmod(positions, self._num)
        wanted = range(int(passes[0]), int(passes[-1]) + 1)
        self._orders = {number: self._order(number) for number in wanted}
        return np.stack([self._orders[number] for number in wanted])[passes - passes[0], places]

    def _order(self, number: int) -> NDArray[np.int64]:
        if number in self._orders:
            return self._orders[number]
        return np.random.default_rng([self._seed, number]).permutation(self._num)
