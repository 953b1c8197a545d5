"""Batches of users' sequences with sampled negatives, for the models that predict the next item."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed import ProcessGroup
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workloads.configs import InteractionsConfig
from workloads.evaluation.leave_one_out import LeaveOneOut
from workloads.evaluation.ranking import evaluate_ranking
from workloads.hashing import below, hash_of
from workloads.histories import Histories
from workloads.interface import EvaluationResult, RowsOf, SequenceBatch, SideTable
from workloads.jagged import positions_of
from workloads.models.configs import SequenceModelConfig

# What a hash is drawn for: the streams must not overlap.
_NEGATIVE, _MODEL = range(2)

_LARGEST_DEFAULT_BATCH = 64


@dataclass(frozen=True)
class SideFeature:
    """A side table and the key of each item where it is `per_token`, otherwise of each user."""

    table: SideTable
    keys: NDArray[np.int64]


class SequenceWorkload:
    """One sample is a user's most recent `max_length` items, the oldest first.

    A run goes through all users in an order that is a function of (seed, pass), pass after pass; worker
    `rank` takes its part of each global batch. A sample's negatives and seed are functions of (seed,
    step, user) alone, and its id is the user's index. The default batch size is at most 64 and at most
    the users divided by the workers, so that no global batch is longer than a pass.

    Evaluation leaves one out: each user's last item, where there are at least two. Training batches are
    then the same users and negatives at every step as those of `batches`, with sequences that end before
    the held-out item; it may be drawn as a negative like any other item, since not drawing it would tell.
    """

    def __init__(
        self,
        name: str,
        histories: Histories,
        config: InteractionsConfig,
        model_config: SequenceModelConfig,
        build_model: Callable[..., nn.Module],
        *,
        seed: int,
        num_workers: int,
        sides: Sequence[SideFeature] = (),
    ) -> None:
        self.name = name
        self.histories = histories
        fitting = max(1, min(_LARGEST_DEFAULT_BATCH, histories.num_users // num_workers))
        self.batch_size = config.batch_size or fitting
        self._max_length = model_config.max_length
        self._num_negatives = model_config.num_negatives
        self._build_model = build_model
        self._seed = seed
        self._sides = tuple(sides)
        self._split = LeaveOneOut(histories)

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The sequence model; see `Workload.model`."""
        sides = {"sides": [side.table for side in self._sides]} if self._sides else {}
        model = self._build_model([self.histories.num_items], self._seed, **sides)
        return model.to(device=device, dtype=dtype)

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[SequenceBatch]:
        """Endless batches of whole histories, the last items included; see `Workload.batches`."""
        for step, users in self._shuffled_users(rank, num_workers, start_step):
            yield self._training_batch(step, users, self.histories.offsets[users + 1])

    def num_steps_an_epoch(self, num_workers: int) -> int:
        """The fewest steps that take as many samples as there are users; see `Evaluable`."""
        return -(-self.histories.num_users // (self.batch_size * num_workers))

    def training_batches(
        self, *, rank: int, num_workers: int, start_epoch: int = 0
    ) -> Iterator[SequenceBatch]:
        """Endless batches without the held-out items; see `Evaluable`.

        Passes follow each other without a gap, so that every batch is full: the last batch of an epoch
        goes on into the next pass.
        """
        first_step = start_epoch * self.num_steps_an_epoch(num_workers)
        for step, users in self._shuffled_users(rank, num_workers, first_step):
            yield self._training_batch(step, users, self._split.ends(users))

    def evaluation_batches(self, *, rank: int, num_workers: int) -> Iterator[SequenceBatch]:
        """Training sequences of the users of whom an item is held out, which is the label.

        Without negatives: the loss that a model finds on them says nothing. See `Evaluable`.
        """
        own = self._split.evaluated_users()[rank::num_workers]
        for first in range(0, len(own), self.batch_size):
            users = own[first : first + self.batch_size]
            yield self._batch(
                users,
                self._split.ends(users),
                negatives=np.zeros((len(users), 0), dtype=np.int64),
                labels=torch.from_numpy(self._split.targets(users)),
            )

    def evaluate(
        self,
        results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]],
        rows_of: RowsOf,
        group: ProcessGroup | None,
    ) -> EvaluationResult:
        """HR and NDCG at 10 and 50 and MRR among all items but those of training; see `Evaluable`."""
        return evaluate_ranking(results, rows_of, group, self._split)

    def _shuffled_users(
        self, rank: int, num_workers: int, start_step: int
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        users = ShuffledPasses(self.histories.num_users, self._seed)
        for step in itertools.count(start_step):
            first = (step * num_workers + rank) * self.batch_size
            yield step, users.at(np.arange(first, first + self.batch_size, dtype=np.int64))

    def _training_batch(self, step: int, users: NDArray[np.int64], ends: NDArray[np.int64]) -> SequenceBatch:
        return self._batch(
            users,
            ends,
            negatives=self._negatives(step, users),
            # Next-item models take their targets from the sequence itself.
            labels=torch.zeros(len(users)),
            seeds=torch.from_numpy(hash_of(self._seed, _MODEL, step, users).view(np.int64)),
        )

    def _batch(
        self,
        users: NDArray[np.int64],
        ends: NDArray[np.int64],
        *,
        negatives: NDArray[np.int64],
        labels: torch.Tensor,
        seeds: torch.Tensor | None = None,
    ) -> SequenceBatch:
        """The most recent items of `users` before the positions `ends`, with `negatives` [n, k]."""
        starts = np.maximum(self.histories.offsets[users], ends - self._max_length)
        lengths = ends - starts
        tokens = np.repeat(starts, lengths) + positions_of(lengths)
        features = [
            ("item", lengths, self.histories.items[tokens]),
            ("negative", np.full_like(lengths, negatives.shape[1]), negatives.reshape(-1)),
        ]
        for side in self._sides:
            each = side.table.per_token
            keys = side.keys[self.histories.items[tokens] if each else users]
            features.append((side.table.name, lengths if each else np.ones_like(lengths), keys))
        return SequenceBatch(
            sparse_features=_jagged(features),
            context=_jagged([("timestamp", lengths, np.asarray(self.histories.timestamps_s[tokens]))]),
            labels=labels,
            sample_ids=torch.from_numpy(users),
            seeds=seeds,
        )

    def _negatives(self, step: int, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """Items drawn uniformly: [len(users), num_negatives]."""
        draws = np.arange(self._num_negatives, dtype=np.int64)
        hashes = hash_of(self._seed, _NEGATIVE, step, users[:, np.newaxis], draws)
        return below(hashes, self.histories.num_items)


def _jagged(features: Sequence[tuple[str, NDArray[np.int64], NDArray[np.int64]]]) -> KeyedJaggedTensor:
    """From (key, length of each sample, values) of each feature."""
    return KeyedJaggedTensor(
        keys=[key for key, _, _ in features],
        values=torch.from_numpy(np.concatenate([values for _, _, values in features])),
        lengths=torch.from_numpy(np.concatenate([lengths for _, lengths, _ in features])),
    )


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
