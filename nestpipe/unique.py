"""Unique keys and intersections of them: in host memory, and on a device, whose host waits for no size.

How many keys are unique is known to a device only. There results come in room for the most that there
could be, with their size beside them: route reads the sizes that it needs in one go and cuts the results.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Unique(NamedTuple):
    """Unique keys and each key's place among them."""

    keys: torch.Tensor
    """[n] ascending; on a device [num keys given], behind the unique ones the size of the key space."""
    inverse: torch.Tensor
    """[num keys given]"""
    num: torch.Tensor | None
    """On a device n; None where `keys` are no more than that."""


class Shared(NamedTuple):
    """Positions of the keys that two sets have in common."""

    active: torch.Tensor
    """[n] in the first set; on a device, as `prefetch`, [size of the second set] and undefined behind n."""
    prefetch: torch.Tensor
    """[n] in the second set, ascending."""
    num: torch.Tensor | None
    """On a device n; None where the positions are no more than that."""

    def cut(self, num: int) -> Shared:
        """The first `num`, which is what `self.num` says."""
        return Shared(self.active[:num], self.prefetch[:num], None)


class UniqueFinder:
    """Sorted unique keys in host memory; linear in the keys where their space is small.

    Keeps a scratch map of the key space, so it belongs to one lane. It works through numpy, whose search
    for set flags is twice as fast as torch's.
    """

    # A bitmap walks the whole key space: worth it up to this many keys an id. Sorting wins beyond.
    MAX_KEYS_PER_ID = 64

    def __init__(self, key_space: int) -> None:
        self._key_space = key_space
        self._mark: torch.Tensor | None = None
        self._slot: torch.Tensor | None = None

    def __call__(self, keys: torch.Tensor) -> Unique:
        """Of `keys` int64 [n] below the key space."""
        if self._key_space > self.MAX_KEYS_PER_ID * keys.numel():
            unique, inverse = torch.unique(keys, return_inverse=True)
            return Unique(unique, inverse, None)
        if self._mark is None or self._slot is None:
            self._mark = torch.zeros(self._key_space, dtype=torch.bool)
            self._slot = torch.empty(self._key_space, dtype=torch.int64)
        self._mark.index_fill_(0, keys, True)
        unique = torch.from_numpy(self._mark.numpy().nonzero()[0])
        self._mark.index_fill_(0, unique, False)
        self._slot.index_copy_(0, unique, torch.arange(unique.numel()))
        return Unique(unique, self._slot.index_select(0, keys), None)


def unique_on_device(keys: torch.Tensor, key_space: int) -> Unique:
    """Of `keys` int64 [n] below `key_space`, by sorting; the host waits for nothing."""
    if keys.numel() == 0:
        return Unique(keys, torch.empty_like(keys), keys.new_zeros(()))
    ascending, order = keys.sort()
    places = torch.zeros_like(keys)
    torch.cumsum(ascending[1:] != ascending[:-1], 0, out=places[1:])
    # Equal keys have one place, so that it does not matter which of them is copied last.
    unique = torch.full_like(keys, key_space).index_copy_(0, places, ascending)
    inverse = torch.empty_like(keys).index_copy_(0, order, places)
    return Unique(unique, inverse, places[-1] + 1)


def shared_positions(active: torch.Tensor, prefetch: torch.Tensor) -> Shared:
    """Of two ascending sets of unique keys int64, [a] and [p]; on a device the host waits for the size."""
    if active.numel() == 0 or prefetch.numel() == 0:
        return _nothing(active)
    positions, is_shared = _match(active, prefetch)
    mine = is_shared.nonzero().view(-1)
    return Shared(positions.index_select(0, mine), mine, None)


def shared_positions_on_device(active: torch.Tensor, prefetch: torch.Tensor) -> Shared:
    """As `shared_positions`, and the host waits for nothing.

    `prefetch` may end with keys that are larger than any in `active` and not unique.
    """
    num = prefetch.numel()
    if active.numel() == 0 or num == 0:
        return _nothing(active)._replace(num=active.new_zeros(()))
    positions, is_shared = _match(active, prefetch)
    so_far = is_shared.cumsum(0)
    # What is not shared goes to one place too many, which nobody looks at.
    places = torch.where(is_shared, so_far - 1, num)
    mine = places.new_zeros(num + 1).index_copy_(0, places, torch.arange(num, device=places.device))[:num]
    return Shared(positions.index_select(0, mine), mine, so_far[-1])


def _match(active: torch.Tensor, prefetch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.searchsorted(active, prefetch).clamp_(max=active.numel() - 1)
    return positions, active.index_select(0, positions) == prefetch


def _nothing(like: torch.Tensor) -> Shared:
    empty = like.new_empty(0)
    return Shared(empty, empty, None)
