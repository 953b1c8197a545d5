"""Synthetic samples: Zipf keys with permuted ids, log-normal lengths, labels that can be learnt."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed import ProcessGroup
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workloads.configs import SyntheticConfig
from workloads.evaluation.click import evaluate_clicks
from workloads.hashing import UInt64, hash_of, hash_stream, normal, uniform
from workloads.interface import EvaluationResult, RowsOf, SequenceBatch, Workload
from workloads.jagged import positions_of, sums_of
from workloads.models.configs import PooledConfig
from workloads.models.names import feature_name
from workloads.zipf import AliasTable, zipf_probabilities

# What a hash is drawn for: the streams must not overlap.
_LENGTH, _ROUNDING, _KEY = range(3)

# Samples never end, so an epoch is a number of them; no run gets as far as the ids of those held out.
NUM_EPOCH_SAMPLES = 1 << 16
NUM_HELD_OUT = 1 << 13
_FIRST_HELD_OUT = 1 << 62


class Synthetic:
    """Samples that are functions of (seed, sample id) alone.

    Sample `i` of worker `rank` at `step` has the id `(step * num_workers + rank) * batch_size + i`, so a
    global batch is the same samples however many workers share it. Hot ids are spread over the table by a
    seeded permutation; tables of different features have permutations of their own.
    """

    name = "synthetic"

    def __init__(
        self, config: SyntheticConfig, build_model: Callable[[Sequence[int], int], nn.Module], *, seed: int
    ) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._build_model = build_model
        self._seed = seed
        self._features = [feature_name(table) for table in range(config.num_tables)]
        self._zipf = AliasTable.of(zipf_probabilities(config.num_rows, config.exponent))
        self._ids_by_rank = [
            np.random.default_rng([seed, table]).permutation(config.num_rows)
            for table in range(config.num_tables)
        ]

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The pooled model; see `Workload.model`."""
        num_rows = [self.config.num_rows] * self.config.num_tables
        return self._build_model(num_rows, self._seed).to(device=device, dtype=dtype)

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[SequenceBatch]:
        """Endless batches of one worker; see `Workload.batches`."""
        for step in itertools.count(start_step):
            first = (step * num_workers + rank) * self.batch_size
            yield self._batch(np.arange(first, first + self.batch_size, dtype=np.int64))

    def num_steps_an_epoch(self, num_workers: int) -> int:
        """The fewest steps that take NUM_EPOCH_SAMPLES; see `Evaluable`."""
        return -(-NUM_EPOCH_SAMPLES // (self.batch_size * num_workers))

    def training_batches(
        self, *, rank: int, num_workers: int, start_epoch: int = 0
    ) -> Iterator[SequenceBatch]:
        """The batches of `batches`, which never reach what is held out; see `Evaluable`."""
        start_step = start_epoch * self.num_steps_an_epoch(num_workers)
        return self.batches(rank=rank, num_workers=num_workers, start_step=start_step)

    def evaluation_batches(self, *, rank: int, num_workers: int) -> Iterator[SequenceBatch]:
        """NUM_HELD_OUT samples over all workers; see `Evaluable`."""
        own = np.arange(_FIRST_HELD_OUT + rank, _FIRST_HELD_OUT + NUM_HELD_OUT, num_workers, dtype=np.int64)
        for first in range(0, len(own), self.batch_size):
            yield self._batch(own[first : first + self.batch_size])

    def evaluate(
        self,
        results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]],
        rows_of: RowsOf,
        group: ProcessGroup | None,
    ) -> EvaluationResult:
        """AUC and normalised entropy; see `Evaluable`."""
        return evaluate_clicks(results, group)

    def _batch(self, sample_ids: NDArray[np.int64]) -> SequenceBatch:
        tables = np.arange(self.config.num_tables, dtype=np.int64)[:, np.newaxis]
        lengths = self._lengths(tables, sample_ids)
        keys = self._keys(hash_of(self._seed, _KEY, tables, sample_ids), lengths)
        return SequenceBatch(
            sparse_features=KeyedJaggedTensor(
                keys=self._features,
                values=torch.from_numpy(keys),
                lengths=torch.from_numpy(lengths.reshape(-1)),
            ),
            context=None,
            labels=torch.from_numpy(_labels(keys, lengths)),
            sample_ids=torch.from_numpy(sample_ids),
        )

    def _lengths(self, tables: NDArray[np.int64], sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each feature and sample: [num_tables, num_samples]."""
        sigma = self.config.sigma
        centre = np.log(self.config.mean_length) - sigma**2 / 2
        exact = np.exp(centre + sigma * normal(hash_of(self._seed, _LENGTH, tables, sample_ids)))
        # Rounding down a number shifted by a uniform one keeps the mean, and allows empty samples.
        shift = uniform(hash_of(self._seed, _ROUNDING, tables, sample_ids))
        return np.floor(exact + shift).astype(np.int64)

    def _keys(self, states: UInt64, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keys of all tokens, feature by feature and sample by sample: [lengths.sum()]."""
        flat = lengths.reshape(-1)
        keys = self._zipf.draw(hash_stream(np.repeat(states.reshape(-1), flat), positions_of(flat)))
        start = 0
        for ids_by_rank, num_tokens in zip(self._ids_by_rank, lengths.sum(axis=1), strict=True):
            own = slice(start, start + int(num_tokens))
            keys[own] = ids_by_rank[keys[own]]
            start = own.stop
        return keys


def _labels(keys: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """1 where most of a sample's keys are odd, else 0: [num_samples].

    Ids are permuted, so parity is a fair coin for each row, which a model can learn row by row.
    """
    num_odd = sums_of(keys & 1, lengths.reshape(-1)).reshape(lengths.shape).sum(axis=0)
    return (2 * num_odd > lengths.sum(axis=0)).astype(np.float32)


def build(
    config: SyntheticConfig,
    model_config: PooledConfig,
    build_model: Callable[[Sequence[int], int], nn.Module],
    *,
    seed: int,
    num_workers: int,
    cache_dir: Path,
) -> Workload:
    """The workload for the registry; it depends on neither the cache nor the number of workers."""
    return Synthetic(config, build_model, seed=seed)
