"""What every workload offers: a model, its batches, and how they depend on the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from workloads.key_lengths import KeyLengths, lengths_by_key


@dataclass(frozen=True)
class SideTable:
    """A feature beside the items of a sequence, looked up in a table of its own under its name.

    Its key occurs once a token of the sample's items where `per_token`, otherwise once a sample.
    """

    name: str
    num_rows: int
    per_token: bool = False


@dataclass
class SequenceBatch(Pipelineable):
    """Samples of one worker: the keys to look up and what the model needs beside them.

    `sparse_features` holds the looked-up keys, `labels` one value a sample ([num_samples] or
    [num_samples, k]), `sample_ids` the identity of each sample ([num_samples], int64). `context` holds
    per-token values that are not looked up (for example timestamps, int64), and `seeds` one random
    number a sample and step ([num_samples], int64), from which a model draws its dropout; `dense` holds
    each sample's numeric features ([num_samples, num_dense], float32). Each is None where the model has
    no use for it. Every KeyedJaggedTensor has `stride() == num_samples`.
    """

    sparse_features: KeyedJaggedTensor
    context: KeyedJaggedTensor | None
    labels: torch.Tensor
    sample_ids: torch.Tensor
    seeds: torch.Tensor | None = None
    dense: torch.Tensor | None = None

    def __post_init__(self) -> None:
        # Not a field: what cuts a batch field by field would hand it on to other samples.
        self._known: tuple[KeyedJaggedTensor, Mapping[str, KeyLengths]] | None = None

    def lengths_of(self, key: str) -> KeyLengths | None:
        """What the host knows of the lengths under `key`, without reading them; None where it knows nothing.

        A pinned batch knows, and so do the copies that `to` makes of it, but no batch of other samples.
        """
        return self._lengths().get(key)

    def _lengths(self) -> Mapping[str, KeyLengths]:
        # A shallow copy with other samples put in remembers what was known of those before.
        if self._known is None or self._known[0] is not self.sparse_features:
            return {}
        return self._known[1]

    def _knowing(self, lengths: Mapping[str, KeyLengths]) -> SequenceBatch:
        self._known = self.sparse_features, lengths
        return self

    def _map(self, function: Callable[[Any], Any]) -> SequenceBatch:
        present = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(self, **{name: function(value) for name, value in present.items()})

    def to(self, device: torch.device, non_blocking: bool = False) -> SequenceBatch:
        """A copy of the batch on `device`."""
        moved = self._map(lambda value: value.to(device=device, non_blocking=non_blocking))
        return moved._knowing(self._lengths())

    def pin_memory(self) -> SequenceBatch:
        """A copy of the batch in pinned host memory, which knows its lengths from now on."""
        pinned = self._map(lambda value: value.pin_memory())
        return pinned._knowing(lengths_by_key(self.sparse_features))

    def record_stream(self, stream: Any) -> None:
        """Mark the batch's memory as used by `stream`."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                value.record_stream(stream)


class Workload(Protocol):
    """One data source with the model that trains on it."""

    name: str
    batch_size: int
    """Samples a worker and step."""

    def model(self, device: torch.device, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The unsharded model with TorchRec embedding modules; equal weights on every call and rank.

        `forward(batch)` returns `(loss, output)`, the loss a mean over the batch's samples and every
        tensor of the output with dim 0 == num_samples; TorchRec's pipelines can trace it.
        """
        ...

    def batches(self, *, rank: int, num_workers: int, start_step: int = 0) -> Iterator[SequenceBatch]:
        """Endless batches of one worker; each is a function of (seed, step, rank, num_workers) alone."""
        ...


RowsOf = Callable[[str], Iterator[tuple[torch.Tensor, torch.Tensor]]]
"""From a table's name to this worker's part of it in chunks: ids [n], int64, and rows [n, dim].

Every row of the table is on exactly one worker. It is called and read to the end equally often on every
worker, however many chunks each has.
"""


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """Metrics on every worker; on rank 0 also what they were computed from, in order of sample ids.

    `sample_ids` [num_samples] and, where items were ranked, `ranks` [num_samples] (1: the best) and
    `top_items` [num_samples, 50], the best item first and -1 where there are no more; all int64. They are
    None on the other workers.
    """

    metrics: dict[str, float]
    sample_ids: torch.Tensor | None = None
    ranks: torch.Tensor | None = None
    top_items: torch.Tensor | None = None


@runtime_checkable
class Evaluable(Workload, Protocol):
    """A workload that holds samples out and says how well a model predicts them."""

    def num_steps_an_epoch(self, num_workers: int) -> int:
        """Steps of `training_batches` that count as one epoch; equal on every worker."""
        ...

    def training_batches(
        self, *, rank: int, num_workers: int, start_epoch: int = 0
    ) -> Iterator[SequenceBatch]:
        """As `batches`, without what is held out: endless, epoch after epoch from `start_epoch` on."""
        ...

    def evaluation_batches(self, *, rank: int, num_workers: int) -> Iterator[SequenceBatch]:
        """Every held-out sample once over all workers, which may have different numbers of batches."""
        ...

    def evaluate(
        self,
        results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]],
        rows_of: RowsOf,
        group: ProcessGroup | None,
    ) -> EvaluationResult:
        """A collective: metrics of what a model said about `evaluation_batches`.

        `results` gives (batch, loss, output) of each of this worker's batches and is read to its end before
        anything else; `group` is a gloo group of all workers that nothing else uses meanwhile, or None in
        a single process.
        """
        ...
