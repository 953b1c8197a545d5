"""What a workload's batches are like: repeated keys, skew, overlap, and what micro-batches cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe.clustering import key_centric_order
from workloads.interface import Workload
from workloads.jagged import offsets_of, sums_of
from workloads.zipf import fit_exponent

Ints = NDArray[np.int64]

NUM_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
QUANTILES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
ALL = "all"
"""Name of the line that counts every feature's keys together."""

_TOP_SHARE = 0.05
_NUM_CURVE_POINTS = 40
# A model draws them, uniformly, so they say nothing about the data.
_NOT_DATA = frozenset({"negative"})


@dataclass(frozen=True)
class FeatureStatistics:
    """Means over the batches, of one feature or of all; a row is a key of one feature.

    `unique_ratio` is unique keys over keys, `duplicates` their difference, `next_overlap` the share of a
    batch's unique keys that the next batch has too, `top_share` the share of keys that fall on the 5 % most
    frequent of the batch's unique keys, and `zipf_exponent` the fit of `workloads.zipf.fit_exponent` to a
    batch, None where no batch has enough frequent keys. `length_quantiles` are of the keys a sample, at
    `QUANTILES`. `accesses_by_rank` has points (rank from 1, keys that fall on it in a batch).
    """

    feature: str
    num_keys: float
    num_unique: float
    unique_ratio: float
    duplicates: float
    next_overlap: float
    top_share: float
    zipf_exponent: float | None
    mean_length: float
    length_quantiles: tuple[float, ...]
    accesses_by_rank: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Inflation:
    """Unique keys of all micro-batches over unique keys of the worker's batch: its mean over batches.

    `own_order` leaves the samples as they come, `clustered` puts them in the key-centric order.
    """

    num_micro_batches: int
    own_order: float
    clustered: float


@dataclass(frozen=True)
class Statistics:
    """A workload in numbers; `features` starts with the line of all."""

    num_samples: int
    """Of a batch, over all workers."""
    num_batches: int
    num_workers: int
    features: tuple[FeatureStatistics, ...]
    inflation: tuple[Inflation, ...]


def describe(
    workload: Workload,
    *,
    num_batches: int,
    num_workers: int = 1,
    num_micro_batches: Sequence[int] = NUM_MICRO_BATCHES,
) -> Statistics:
    """Statistics of the first global batches of `num_workers` workers, inflation of each worker's own.

    Sampled negatives are left out. One more batch is drawn than is described, for the last one's overlap.
    """
    assert num_batches >= 1
    assert num_workers >= 1
    steps = zip(
        *(workload.batches(rank=rank, num_workers=num_workers) for rank in range(num_workers)), strict=True
    )
    collected: dict[str, _Collected] = {}
    inflations: list[Mapping[int, tuple[float, float]]] = []
    num_samples = 0
    for index, batches in enumerate(itertools.islice(steps, num_batches + 1)):
        parts = [_data_of(batch.sparse_features) for batch in batches]
        is_extra = index == num_batches
        for name, (values, lengths) in _together(parts).items():
            collected.setdefault(name, _Collected()).add(values, lengths, is_extra=is_extra)
        if not is_extra:
            num_samples = sum(part.stride() for part in parts)
            inflations += [inflation_of(part, num_micro_batches) for part in parts]
    return Statistics(
        num_samples=num_samples,
        num_batches=num_batches,
        num_workers=num_workers,
        features=(_of_all(collected), *(_of_feature(name, [one]) for name, one in collected.items())),
        inflation=tuple(_mean_inflation(inflations)),
    )


def inflation_of(
    features: KeyedJaggedTensor, num_micro_batches: Sequence[int] = NUM_MICRO_BATCHES
) -> Mapping[int, tuple[float, float]]:
    """Inflation of one batch in its own and in key-centric order, by number of micro-batches.

    A number of micro-batches beyond the batch's samples is left out; a batch without keys counts as 1.
    """
    keys, samples, num_unique = _indexed(features)
    num_samples = features.stride()
    found: dict[int, tuple[float, float]] = {}
    for num in num_micro_batches:
        if num > num_samples:
            continue
        sizes = np.diff(np.linspace(0, num_samples, num + 1).astype(np.int64)).tolist()
        ratios = []
        for order in (np.arange(num_samples), key_centric_order(features, sizes).numpy()):
            micro_batches = np.empty(num_samples, dtype=np.int64)
            micro_batches[order] = np.repeat(np.arange(num), sizes)
            is_used = np.zeros(num_unique * num, dtype=np.bool_)
            is_used[keys * num + micro_batches[samples]] = True
            ratios.append(np.count_nonzero(is_used) / num_unique if num_unique else 1.0)
        found[num] = (ratios[0], ratios[1])
    return found


@dataclass
class _Collected:
    """What one feature's batches gave so far, a number a batch."""

    num_keys: list[int] = field(default_factory=list)
    counts: list[Ints] = field(default_factory=list)
    num_shared: list[int] = field(default_factory=list)
    lengths: list[Ints] = field(default_factory=list)
    previous: Ints | None = None

    def add(self, values: Ints, lengths: Ints, *, is_extra: bool) -> None:
        """One batch more; of the extra one, only which keys it shares with the one before."""
        unique, counts = np.unique(values, return_counts=True)
        if self.previous is not None:
            self.num_shared.append(len(np.intersect1d(self.previous, unique, assume_unique=True)))
        self.previous = unique
        if not is_extra:
            self.num_keys.append(len(values))
            self.counts.append(counts)
            self.lengths.append(lengths)


def _of_all(collected: Mapping[str, _Collected]) -> FeatureStatistics:
    return _of_feature(ALL, list(collected.values()))


def _of_feature(name: str, parts: Sequence[_Collected]) -> FeatureStatistics:
    """Statistics of the features in `parts`, counted together; equal ids of two of them are two rows."""
    counts = [np.concatenate(batch) for batch in zip(*(part.counts for part in parts), strict=True)]
    num_keys = _summed(part.num_keys for part in parts)
    num_unique = np.array([len(batch) for batch in counts])
    num_shared = _summed(part.num_shared for part in parts)
    lengths = np.sum([np.concatenate(part.lengths) for part in parts], axis=0)
    exponents = [found for batch in counts if (found := fit_exponent(batch)) is not None]
    return FeatureStatistics(
        feature=name,
        num_keys=float(num_keys.mean()),
        num_unique=float(num_unique.mean()),
        unique_ratio=_mean_ratio(num_unique, num_keys),
        duplicates=float((num_keys - num_unique).mean()),
        next_overlap=_mean_ratio(num_shared, num_unique),
        top_share=float(np.mean([_top_share(batch) for batch in counts])),
        zipf_exponent=float(np.mean(exponents)) if exponents else None,
        mean_length=float(lengths.mean()) if len(lengths) else 0.0,
        length_quantiles=tuple(np.quantile(lengths, QUANTILES).tolist()) if len(lengths) else (),
        accesses_by_rank=tuple(_curve(counts)),
    )


def _summed(numbers: Iterable[Sequence[int]]) -> Ints:
    """Batch by batch: [num_features][num_batches] -> [num_batches]."""
    return np.sum([np.asarray(each, dtype=np.int64) for each in numbers], axis=0)


def _mean_ratio(parts: Ints, wholes: Ints) -> float:
    """Mean of the batches' ratios; 0 for a batch that has nothing."""
    return float((parts / np.maximum(wholes, 1)).mean())


def _top_share(counts: Ints) -> float:
    num_top = int(np.ceil(_TOP_SHARE * len(counts)))
    return float(np.sort(counts)[::-1][:num_top].sum() / max(counts.sum(), 1))


def _curve(counts: Sequence[Ints]) -> Iterator[tuple[int, float]]:
    """Points of the mean accesses by rank, equally far from each other on a logarithmic axis."""
    num_ranks = min(map(len, counts))
    if num_ranks == 0:
        return
    total = np.sum([np.sort(batch)[::-1][:num_ranks] for batch in counts], axis=0)
    ranks = np.unique(np.geomspace(1, num_ranks, _NUM_CURVE_POINTS).round().astype(np.int64))
    for rank in ranks.tolist():
        yield rank, float(total[rank - 1] / len(counts))


def _mean_inflation(inflations: Sequence[Mapping[int, tuple[float, float]]]) -> Iterator[Inflation]:
    for num in inflations[0]:
        own, clustered = np.mean([found[num] for found in inflations], axis=0).tolist()
        yield Inflation(num, own, clustered)


def _data_of(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The features that the data has."""
    names = [name for name in features.keys() if name not in _NOT_DATA]  # noqa: SIM118
    return KeyedJaggedTensor(
        keys=names,
        values=torch.cat([features[name].values() for name in names]),
        lengths=torch.cat([features[name].lengths().long() for name in names]),
        stride=features.stride(),
    )


def _together(parts: Sequence[KeyedJaggedTensor]) -> dict[str, tuple[Ints, Ints]]:
    """Values and lengths of each feature over all workers."""
    return {
        name: (
            np.concatenate([part[name].values().numpy() for part in parts]),
            np.concatenate([part[name].lengths().numpy() for part in parts]),
        )
        for name in parts[0].keys()  # noqa: SIM118
    }


def _indexed(features: KeyedJaggedTensor) -> tuple[Ints, Ints, int]:
    """Number of each token's key among the unique ones, its sample, and how many unique keys there are."""
    values, lengths = features.values().numpy(), features.lengths().numpy()
    num_samples, num_features = features.stride(), len(features.keys())
    samples = np.repeat(np.tile(np.arange(num_samples), num_features), lengths)
    num_tokens = sums_of(lengths, np.full(num_features, num_samples))
    offsets = offsets_of(num_tokens)
    keys = np.empty(len(values), dtype=np.int64)
    num_unique = 0
    for start, end in itertools.pairwise(offsets.tolist()):
        unique, index = np.unique(values[start:end], return_inverse=True)
        keys[start:end] = index + num_unique
        num_unique += len(unique)
    return keys, samples, num_unique
