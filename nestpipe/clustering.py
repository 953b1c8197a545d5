"""Key-centric sample clustering: samples that share keys go to the same micro-batch.

The paper does not give its algorithm. This one sums up, for each two samples, what the keys that they
share are worth; grows one micro-batch after the other, each time by the sample that shares most with it;
and then swaps samples between micro-batches as long as that brings more together. Large batches, whose
table of pairs would be too large, are grown by their sets of keys alone. Any order leaves the summed
gradient unchanged. `nestpipe data clustering` compares it with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe.shared_keys import SharedKeys, micro_batches_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

MAX_PAIRED_SAMPLES = 1024
"""Larger batches are clustered without a table of pairs, which grows with the square of the samples."""
# Pairs of a key's samples are listed one by one below this frequency, and multiplied out from there.
_MATRIX_FREQUENCY = 32
# A key that is worth less is in so many micro-batches anyway that it is left out.
_LEAST_WORTH = 0.01
_NUM_SWAP_ROUNDS = 24
# Less is rounding, which could swap the same two samples for ever.
_LEAST_GAIN = 1e-3


def key_centric_order(
    features: KeyedJaggedTensor, sizes: Sequence[int], tables: Mapping[str, str] | None = None
) -> torch.Tensor:
    """An order [num_samples] of the samples that puts those with common keys into the same micro-batch.

    `sizes` are the samples of each micro-batch, `tables` the table of each feature (`SharedKeys.of`). The
    micro-batches never ask for more rows, in all, than in the batch's own order.
    """
    return torch.from_numpy(order_of(SharedKeys.of(features, tables), sizes))


def order_of(shared: SharedKeys, sizes: Sequence[int]) -> Ints:
    """`key_centric_order` of a batch whose keys are known."""
    own = np.arange(shared.num_samples)
    assert sum(sizes) == len(own)
    if not len(shared.frequencies):
        return own
    by_pairs = len(own) <= MAX_PAIRED_SAMPLES
    order = pair_growing_order(shared, sizes) if by_pairs else set_growing_order(shared, sizes)
    return order if shared.num_rows(order, sizes) < shared.num_rows(own, sizes) else own


def pair_growing_order(
    shared: SharedKeys, sizes: Sequence[int], num_swap_rounds: int = _NUM_SWAP_ROUNDS
) -> Ints:
    """Micro-batches grown by the sample that shares most with their samples one by one, then swaps.

    Memory and time grow with the square of the samples.
    """
    sizes = [size for size in sizes if size]
    if len(sizes) < 2:
        return np.arange(shared.num_samples)
    overlaps = pair_overlaps(shared, worth_of(shared, sizes))
    return swap(overlaps, _grow_by_pairs(overlaps, sizes), sizes, num_swap_rounds)


def set_growing_order(shared: SharedKeys, sizes: Sequence[int]) -> Ints:
    """Micro-batches grown by the sample that shares most with the set of their keys.

    Unlike in a sum over pairs, a key counts once; each micro-batch starts with the sample with most of it.
    """
    worth = worth_of(shared, [size for size in sizes if size])
    keys, key_offsets = shared.by_sample()
    sample_offsets = np.cumsum(shared.frequencies) - shared.frequencies
    own = np.bincount(shared.samples, weights=worth[shared.keys], minlength=shared.num_samples)
    taken = np.zeros(shared.num_samples)
    order = np.empty(shared.num_samples, dtype=np.int64)
    for places in _largest_first(sizes):
        is_covered = worth == 0.0
        covered = taken.copy()
        chosen = int((own + taken).argmax())
        for place in places:
            order[place] = chosen
            taken[chosen] = covered[chosen] = -np.inf
            held = keys[key_offsets[chosen] : key_offsets[chosen + 1]]
            new = held[~is_covered[held]]
            is_covered[new] = True
            counts = shared.frequencies[new]
            starts = sample_offsets[new] - (np.cumsum(counts) - counts)
            holders = shared.samples[np.repeat(starts, counts) + np.arange(counts.sum())]
            covered += np.bincount(holders, weights=np.repeat(worth[new], counts), minlength=len(order))
            chosen = int(covered.argmax())
    return order


def worth_of(shared: SharedKeys, sizes: Sequence[int]) -> NDArray[np.float64]:
    """How much of a row it saves on average to unite two samples of a key: [num_keys].

    Nothing where a third one is there already. Two samples of a random order are in one micro-batch with
    the chance sum((size / num_samples) ** 2), and a key of frequency f has f - 2 other samples.
    """
    chance = np.square(np.array(sizes) / sum(sizes)).sum()
    worth = (1.0 - chance) ** (shared.frequencies - 2)
    return np.where(worth < _LEAST_WORTH, 0.0, worth)


def pair_overlaps(shared: SharedKeys, worth: NDArray[np.float64]) -> Floats:
    """Summed `worth` [num_keys] of the keys that two samples share: [num_samples, num_samples].

    The diagonal is 0.
    """
    frequent = shared.frequencies >= _MATRIX_FREQUENCY
    overlaps = torch.from_numpy(_listed_overlaps(shared, np.where(frequent, 0.0, worth)))
    frequent &= worth > 0.0
    occurrences = np.repeat(frequent, shared.frequencies)
    num_frequent = int(np.count_nonzero(frequent))
    rows = np.repeat(np.arange(num_frequent), shared.frequencies[frequent])
    roots = np.repeat(np.sqrt(worth[frequent]), shared.frequencies[frequent])
    holds = torch.zeros(num_frequent, shared.num_samples)
    holds[torch.from_numpy(rows), torch.from_numpy(shared.samples[occurrences])] = torch.from_numpy(
        roots.astype(np.float32)
    )
    # By torch and not numpy, whose matrix product would start threads of its own.
    return overlaps.addmm_(holds.t(), holds).fill_diagonal_(0.0).numpy()


def _listed_overlaps(shared: SharedKeys, worth: NDArray[np.float64]) -> Floats:
    """`pair_overlaps` by one sum over all pairs of occurrences; costs the square of a frequency."""
    num = shared.num_samples
    ends = np.repeat(np.cumsum(shared.frequencies), shared.frequencies)
    worth_of_each = np.repeat(worth, shared.frequencies)
    occurrences = np.arange(len(ends))
    num_later = np.where(worth_of_each > 0.0, ends - occurrences - 1, 0)
    one = np.repeat(occurrences, num_later)
    other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(num_later) - num_later, num_later)
    cells = shared.samples[one] * num + shared.samples[other]
    upper = np.bincount(cells, weights=worth_of_each[one], minlength=num * num).reshape(num, num)
    return (upper + upper.T).astype(np.float32)


def swap(overlaps: Floats, order: Ints, sizes: Sequence[int], num_rounds: int) -> Ints:
    """`order` after rounds of swaps, each of which adds to what samples of one micro-batch share.

    Kernighan and Lin's gains (Bell System Technical Journal 49, 1970) between every two micro-batches.
    """
    order = order.copy()
    micro_batches = micro_batches_of(order, sizes)
    is_in = np.zeros((len(order), len(sizes)), dtype=np.float32)
    is_in[np.arange(len(order)), micro_batches] = 1.0
    shares = (torch.from_numpy(overlaps) @ torch.from_numpy(is_in)).numpy()
    for _ in range(num_rounds):
        left, right = best_swaps(shares, overlaps, order, sizes)
        if not len(left):
            break
        here, there = micro_batches[order[left]], micro_batches[order[right]]
        moved = overlaps[:, order[right]] - overlaps[:, order[left]]
        shares[:, here] += moved
        shares[:, there] -= moved
        order[left], order[right] = order[right], order[left]
        micro_batches[order[left]], micro_batches[order[right]] = here, there
    return order


def best_swaps(shares: Floats, overlaps: Floats, order: Ints, sizes: Sequence[int]) -> tuple[Ints, Ints]:
    """Places in `order` whose samples should change places: [num_swaps] each, the best swap first.

    `shares` [num_samples, num_micro_batches] is what a sample shares with each micro-batch, itself left
    out. No micro-batch takes part in two swaps, so that their gains add up.
    """
    micro_batches = micro_batches_of(order, sizes)
    gains = (shares - shares[np.arange(len(order)), micro_batches][:, np.newaxis])[order]
    # Places of each micro-batch [num_micro_batches, max(sizes)], the shorter ones with their last repeated.
    ends = np.cumsum(sizes)[:, np.newaxis]
    places = np.minimum(ends - np.array(sizes)[:, np.newaxis] + np.arange(max(sizes)), ends - 1)
    by_place = gains[places]
    best = by_place.argmax(axis=1)
    movers = np.take_along_axis(places, best, axis=1)
    one_way = np.take_along_axis(by_place, best[:, np.newaxis], axis=1)[:, 0]
    # Two samples that share keys lose each other's company where both move.
    both_ways = one_way + one_way.T - 2 * overlaps[order[movers], order[movers.T]]
    here, there = _disjoint_best(both_ways)
    return movers[here, there], movers[there, here]


def _grow_by_pairs(overlaps: Floats, sizes: Sequence[int]) -> Ints:
    """Each micro-batch starts with the sample that shares most with all those left over."""
    order = np.empty(len(overlaps), dtype=np.int64)
    taken = np.zeros(len(overlaps), dtype=np.float32)
    left_over = overlaps.sum(axis=1)
    for places in _largest_first(sizes):
        shares = taken.copy()
        chosen = int((left_over + taken).argmax())
        for place in places:
            order[place] = chosen
            taken[chosen] = shares[chosen] = -np.inf
            shares += overlaps[chosen]
            left_over -= overlaps[chosen]
            chosen = int(shares.argmax())
    return order


def _disjoint_best(gains: Floats) -> tuple[Ints, Ints]:
    """Pairs of different micro-batches by falling gain, as long as it is one, each micro-batch once."""
    num = len(gains)
    upper = np.triu(gains, 1).reshape(-1)
    is_free = [True] * num
    pairs = []
    for cell in np.argsort(-upper, kind="stable")[: 4 * num].tolist():
        here, there = divmod(cell, num)
        if upper[cell] < _LEAST_GAIN:
            break
        if is_free[here] and is_free[there]:
            is_free[here] = is_free[there] = False
            pairs.append((here, there))
    chosen = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return chosen[:, 0], chosen[:, 1]


def _largest_first(sizes: Sequence[int]) -> Iterator[range]:
    """The places of each micro-batch in an order, so that small ones get what shares little with any."""
    starts = np.cumsum(sizes) - sizes
    for index in np.argsort(-np.array(sizes), kind="stable").tolist():
        if sizes[index]:
            yield range(int(starts[index]), int(starts[index]) + sizes[index])
