"""Criteo's click logs: 13 integers and 26 categories a sample, and whether it was clicked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed import ProcessGroup
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from workloads.block_shuffle import BlockShuffledPasses
from workloads.configs import CRITEO_NUM_DENSE, CRITEO_NUM_FIELDS, CriteoConfig
from workloads.criteo_files import Clicks, find_files, load_clicks
from workloads.criteo_rows import HashedRows, MultiHot, Rows, load_vocabulary
from workloads.evaluation.click import evaluate_clicks
from workloads.hashing import hash_of
from workloads.interface import EvaluationResult, RowsOf, SequenceBatch, Workload
from workloads.models.configs import DlrmConfig, PooledConfig

FEATURES = tuple(f"category_{number}" for number in range(1, CRITEO_NUM_FIELDS + 1))


class Criteo:
    """One sample is a row of the files, and its id is the row's number.

    The last `holdout` share of the rows is evaluated, never trained. A run goes through the others in an
    order that is a function of (seed, pass), pass after pass; worker `rank` takes its part of each global
    batch. `dense` is log(1 + max(x, 0)) of the 13 integers, `num_rows` the rows of each field's table.
    """

    name = "criteo"

    def __init__(
        self,
        clicks: Clicks,
        config: CriteoConfig,
        rows: Rows,
        build_model: Callable[..., nn.Module],
        *,
        seed: int,
    ) -> None:
        self.batch_size = config.batch_size
        self._clicks = clicks
        self.num_rows = rows.num_rows
        self._rows = rows
        self._multi_hot = MultiHot(config.multi_hot, rows.num_rows)
        self._num_training = num_training_of(clicks, config)
        self._build_model = build_model
        self._seed = seed

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The click model with a table a field; see `Workload.model`."""
        model = self._build_model(self.num_rows, self._seed, features=FEATURES)
        return model.to(device=device, dtype=dtype)

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[SequenceBatch]:
        """Endless batches of the rows that are not held out; see `Workload.batches`."""
        passes = BlockShuffledPasses(self._num_training, self._seed)
        for step in itertools.count(start_step):
            first = (step * num_workers + rank) * self.batch_size
            samples = passes.range(first, self.batch_size)
            seeds = hash_of(self._seed, step, samples).view(np.int64)
            yield self._batch(samples, torch.from_numpy(seeds))

    def num_steps_an_epoch(self, num_workers: int) -> int:
        """The fewest steps that take as many samples as a pass has; see `Evaluable`."""
        return -(-self._num_training // (self.batch_size * num_workers))

    def training_batches(
        self, *, rank: int, num_workers: int, start_epoch: int = 0
    ) -> Iterator[SequenceBatch]:
        """As `batches`; the last batch of an epoch goes on into the next pass. See `Evaluable`."""
        first_step = start_epoch * self.num_steps_an_epoch(num_workers)
        return self.batches(rank=rank, num_workers=num_workers, start_step=first_step)

    def evaluation_batches(self, *, rank: int, num_workers: int) -> Iterator[SequenceBatch]:
        """The held-out rows in their order, batches dealt out to the workers in turn; see `Evaluable`."""
        firsts = range(self._num_training, self._clicks.num_samples, self.batch_size)
        for first in firsts[rank::num_workers]:
            yield self._batch(np.arange(first, min(first + self.batch_size, self._clicks.num_samples)))

    def evaluate(
        self,
        results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]],
        rows_of: RowsOf,
        group: ProcessGroup | None,
    ) -> EvaluationResult:
        """AUC, normalised entropy and log loss of the logits; see `Evaluable` and `evaluate_clicks`."""
        return evaluate_clicks(results, group)

    def _batch(self, samples: NDArray[np.int64], seeds: torch.Tensor | None = None) -> SequenceBatch:
        bags = self._multi_hot.of(self._rows_of(samples))
        lengths = np.repeat(np.array(self._multi_hot.sizes), len(samples))
        return SequenceBatch(
            sparse_features=KeyedJaggedTensor(
                keys=list(FEATURES),
                values=torch.from_numpy(np.concatenate([bag.reshape(-1) for bag in bags])),
                lengths=torch.from_numpy(lengths),
            ),
            context=None,
            labels=torch.from_numpy(self._clicks.labels[samples].astype(np.float32)),
            sample_ids=torch.from_numpy(samples),
            seeds=seeds,
            dense=torch.from_numpy(self._clicks.dense[samples]),
        )

    def _rows_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each sample and field, 0 for a blank: [n, 26]."""
        fields = np.arange(CRITEO_NUM_FIELDS, dtype=np.uint32)
        is_missing = self._clicks.missing[samples][:, np.newaxis] >> fields & np.uint32(1)
        return np.where(is_missing, 0, self._rows.of(self._clicks.categories[samples]))


def num_training_of(clicks: Clicks, config: CriteoConfig) -> int:
    """Samples that are not held out, at least one."""
    return max(1, clicks.num_samples - round(config.holdout * clicks.num_samples))


def build(
    config: CriteoConfig,
    model_config: DlrmConfig | PooledConfig,
    build_model: Callable[..., nn.Module],
    *,
    seed: int,
    num_workers: int,
    cache_dir: Path,
) -> Workload:
    """The workload for the registry; ValueError or FileNotFoundError where `path` does not do."""
    if not config.path:
        raise ValueError(
            "workload 'criteo' needs path=FILE-OR-FOLDER: Kaggle's train.txt or the Terabyte's day_0 ..."
        )
    if isinstance(model_config, DlrmConfig) and model_config.num_dense != CRITEO_NUM_DENSE:
        raise ValueError(f"setting num_dense={model_config.num_dense}: expected {CRITEO_NUM_DENSE}")
    files = find_files(config.path)
    clicks = load_clicks(files, cache_dir)
    if config.ids == "hash":
        rows: Rows = HashedRows(config.hash_rows)
    else:
        num_training = num_training_of(clicks, config)
        rows = load_vocabulary(clicks, num_training, config.min_frequency, files, cache_dir)
    return Criteo(clicks, config, rows, build_model, seed=seed)
