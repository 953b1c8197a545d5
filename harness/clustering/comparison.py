"""How much each way to sort samples inflates the rows that a batch asks for, on the same batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, median, stdev
from typing import TypeVar

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from harness.clustering.bound import least_rows
from harness.clustering.contestants import CONTESTANTS, RANDOM
from nestpipe.batching import cut_sizes
from nestpipe.shared_keys import SharedKeys
from workloads.interface import Workload

BOUND = "lower bound"
"""Stands among the algorithms for `least_rows`."""
NEGATIVE, ITEM = "negative", "item"
MIN_BATCHES = 5
"""Fewer give no 95 % bound worth the name."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Mean:
    """A mean over batches; the true one lies within `bound` of it with a confidence of 95 %."""

    mean: float
    bound: float


@dataclass(frozen=True)
class Outcome:
    """One algorithm on one workload at one size of micro-batches.

    `inflation` is the sum over micro-batches of their unique keys over the unique keys of the batch, and
    `removed` the share of random order's inflation above 1 that the algorithm takes away, below 0 where it
    is worse; None where random order does not inflate. `cpu_ms` is the median time of one core a batch,
    None for what the engine would not run.
    """

    workload: str
    num_samples: int
    micro_batch: int
    algorithm: str
    inflation: Mean
    removed: Mean | None
    cpu_ms: float | None


@dataclass
class _Measured:
    inflations: list[float]
    times_ms: list[float]


def compare(
    name: str,
    workload: Workload,
    *,
    num_batches: int,
    micro_batches: Sequence[int],
    with_negatives: bool = False,
    report: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Every contestant and the lower bound on the first batches of one worker, on one thread of torch.

    Micro-batches are as even as they go. Sampled negatives are left out unless they are asked for, and are
    then keys of the items' table. `report` is called after each batch. ValueError where a
    micro-batch is not smaller than the batch.
    """
    assert num_batches >= MIN_BATCHES
    for size in micro_batches:
        if size >= workload.batch_size:
            raise ValueError(
                f"a micro-batch of {size} samples is no part of {name}'s batches of {workload.batch_size}; "
                "choose a smaller --micro-batch or a larger batch_size"
            )
    found = {size: {name: _Measured([], []) for name in (*CONTESTANTS, BOUND)} for size in micro_batches}
    with _one_thread():
        for batch in itertools.islice(workload.batches(rank=0, num_workers=1), num_batches):
            features = features_to_count(batch.sparse_features, with_negatives=with_negatives)
            shared, keys_ms = _timed_ms(lambda: SharedKeys.of(features, {NEGATIVE: ITEM}))  # noqa: B023
            for size in micro_batches:
                _measure(shared, keys_ms, size, found[size])
            report()
    return [
        outcome
        for size in micro_batches
        for outcome in _outcomes(name, workload.batch_size, size, found[size])
    ]


def features_to_count(features: KeyedJaggedTensor, *, with_negatives: bool) -> KeyedJaggedTensor:
    """The features of a batch without the sampled negatives, which are no property of the data."""
    names = [name for name in features.keys() if with_negatives or name != NEGATIVE]  # noqa: SIM118
    parts = [features[name] for name in names]
    return KeyedJaggedTensor(
        keys=names,
        values=torch.cat([part.values() for part in parts]),
        lengths=torch.cat([part.lengths() for part in parts]),
        stride=features.stride(),
    )


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of `values`, at least 5, and its 95 % bound by Student's t."""
    return Mean(fmean(values), _student(len(values) - 1) * stdev(values) / sqrt(len(values)))


def _student(freedom: int) -> float:
    """Quantile 0.975 of Student's t, by Fisher's expansion around the normal one; from 4 on good to 0.3 %.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def _measure(shared: SharedKeys, keys_ms: float, size: int, found: dict[str, _Measured]) -> None:
    """One batch: every contestant in turn, then the bound."""
    num_samples, num_unique = shared.num_samples, max(shared.num_unique, 1)
    sizes = cut_sizes(num_samples, [1] * -(-num_samples // size))
    for name, contestant in CONTESTANTS.items():
        order, spent_ms = _timed_ms(lambda: contestant(shared, sizes))  # noqa: B023
        found[name].inflations.append(shared.num_rows(order, sizes) / num_unique)
        found[name].times_ms.append(keys_ms + spent_ms)
    found[BOUND].inflations.append(least_rows(shared, sizes) / num_unique)


def _outcomes(
    workload: str, num_samples: int, micro_batch: int, found: dict[str, _Measured]
) -> Iterator[Outcome]:
    random = found[RANDOM].inflations
    for name, measured in found.items():
        removed = None
        if min(random) > 1:
            pairs = zip(random, measured.inflations, strict=True)
            removed = mean_of([(before - after) / (before - 1) for before, after in pairs])
        cpu_ms = None if name in (RANDOM, BOUND) else median(measured.times_ms)
        yield Outcome(workload, num_samples, micro_batch, name, mean_of(measured.inflations), removed, cpu_ms)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch on the calling thread, where its time is counted."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed_ms(run: Callable[[], Result]) -> tuple[Result, float]:
    """What `run` returns and the time of one core that it took; other processes do not count."""
    start = time.thread_time()
    result = run()
    return result, (time.thread_time() - start) * 1e3
