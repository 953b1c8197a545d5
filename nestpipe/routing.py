"""Key routing (stage 3): which rows each micro-batch needs, who owns them, who asked this rank for what.

All tables of one embedding dim and dtype share a row space. Row k of it belongs to rank k mod W, so
that hot keys, which generators and vocabularies like to place next to each other, are spread. Keys
travel in owner-major form, owner * rows_per_rank + row at the owner: sorted unique keys are then
bucketed by owner without further work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

import torch

from nestpipe.kernels.bucketize import bucketize_keys, owner_major_keys
from nestpipe.transport import Transport, wait
from nestpipe.unique import (
    Shared,
    Unique,
    UniqueFinder,
    shared_positions,
    shared_positions_on_device,
    unique_on_device,
)


@dataclass(frozen=True)
class RowSpace:
    """The rows of all tables of one dim and dtype, dealt out to `num_ranks` owners."""

    dim: int
    dtype: torch.dtype
    num_rows: int
    num_ranks: int

    @property
    def rows_per_rank(self) -> int:
        """Rows that each rank holds room for; the last few may be unused."""
        return -(-self.num_rows // self.num_ranks)

    def owner_major(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys [n] in 0..num_rows-1 as owner * rows_per_rank + row at the owner."""
        return owner_major_keys(keys, self.num_ranks, self.rows_per_rank)


@dataclass
class MicroBatchRoute:
    """One micro-batch's part of a row space."""

    inverse: torch.Tensor
    """[num_ids] position of each id among the unique rows that this rank asks for."""
    request_splits: list[int]
    """Unique rows asked of each owner; they arrive in this order."""
    positions: torch.Tensor
    """[sum(serve_splits)] what the ranks ask of this one, sender by sender, as positions in `owner_rows`."""
    serve_splits: list[int]

    @property
    def num_requested(self) -> int:
        return sum(self.request_splits)


@dataclass
class SpaceRoute:
    """One batch's part of a row space."""

    owner_rows: torch.Tensor
    """[n] this rank's rows that anybody asked for, unique and ascending; until their number is read, on a
    device, with room behind them."""
    micro_batches: list[MicroBatchRoute]


class Flag(IntEnum):
    """What a rank says of its batch along with its key counts."""

    BATCH = 0
    END = 1
    ERROR = 2


@dataclass
class Routed:
    """The outcome of `route`: what every rank had, and the routes if all had a batch."""

    flags: list[Flag] = field(default_factory=list)
    spaces: list[SpaceRoute] = field(default_factory=list)
    shared: list[Shared] = field(default_factory=list)
    """By row space the rows that another batch has as well, where they were asked for."""
    sizes: torch.Tensor | None = None
    """On a device how many rows each of `spaces` has and then each of `shared`, until the host reads it."""

    def cut(self, sizes: Sequence[int]) -> None:
        """Leave of rows and shared positions as many as there are: `sizes` as `self.sizes` says."""
        for route, num in zip(self.spaces, sizes, strict=False):
            route.owner_rows = route.owner_rows[:num]
        self.shared = [s.cut(num) for s, num in zip(self.shared, sizes[len(self.spaces) :], strict=True)]
        self.sizes = None


class Router:
    """Routes batches over one transport; every rank calls `route` once a step, with or without keys.

    Keys are on `device`, the CPU by default, and so is all that is made of them. From a device that is
    `asynchronous` the host reads the counts, as the keys' All2All needs them, and what has come of them,
    the sizes of the owner's part: at once, or late, with the next batch's counts.
    """

    def __init__(
        self,
        spaces: Sequence[RowSpace],
        transport: Transport,
        device: torch.device | None = None,
        asynchronous: bool = False,
    ) -> None:
        self._spaces = list(spaces)
        self._transport = transport
        self._device = device or torch.device("cpu")
        self._asynchronous = asynchronous
        # Keys of senders and keys at the owner live in different ranges, hence two scratch maps.
        self._unique_keys = [self._finder(s.rows_per_rank * s.num_ranks) for s in spaces]
        self._unique_rows = [self._finder(s.rows_per_rank) for s in spaces]

    def _finder(self, key_space: int) -> Callable[[torch.Tensor], Unique]:
        if self._asynchronous:
            return partial(unique_on_device, key_space=key_space)
        return UniqueFinder(key_space)

    def route(
        self,
        keys: list[list[torch.Tensor]],
        num_micro_batches: int,
        flag: Flag,
        before: Routed | None = None,
        late_sizes: bool = False,
    ) -> Routed:
        """Exchange counts, flags and keys.

        `keys[space][micro_batch]` are owner-major keys [num_ids], duplicates included; with a flag
        other than BATCH they are ignored. Two All2Alls: counts with the flag, then the keys of all
        micro-batches; only the first if any rank has no batch. `before` is another batch, for the rows
        shared with it; its sizes are read here if they have not been. With `late_sizes` those of the
        outcome are not.
        """
        num_ranks, num_segments = self._transport.size, len(self._spaces) * num_micro_batches
        inverses: list[torch.Tensor] = []
        counts = torch.zeros(num_ranks, 1 + num_segments, dtype=torch.int64, device=self._device)
        counts[:, 0] = int(flag)
        outgoing = counts.new_empty(0)
        if flag is Flag.BATCH:
            uniques = []
            for finder, of_space in zip(self._unique_keys, keys, strict=True):
                for ids in of_space:
                    found = finder(ids)
                    uniques.append(found.keys)
                    inverses.append(found.inverse)
            rows_per_rank = [space.rows_per_rank for space in self._spaces for _ in range(num_micro_batches)]
            outgoing, counts[:, 1:] = bucketize_keys(uniques, num_ranks, rows_per_rank)
        received_counts = torch.empty_like(counts)
        wait(self._transport.all_to_all(received_counts, counts))
        sent, received = _read(counts, received_counts, before)
        flags = [Flag(row[0]) for row in received]
        if any(f is not Flag.BATCH for f in flags):
            return Routed(flags)
        requests = [row[1:] for row in sent]  # [owner][segment]
        serves = [row[1:] for row in received]  # [sender][segment]
        segments = self._exchange_keys(outgoing, requests, serves)
        owned = self._owned(segments, num_micro_batches)
        spaces = [
            self._space_route(index, num_micro_batches, inverses, requests, serves, unique)
            for index, unique in enumerate(owned)
        ]
        routed = Routed(flags, spaces, self._shared(owned, before))
        nums = [unique.num for unique in owned] + [shared.num for shared in routed.shared]
        unread = [num for num in nums if num is not None]
        if unread:
            routed.sizes = torch.stack(unread)
            if not late_sizes:
                routed.cut(routed.sizes.tolist())
        return routed

    def _exchange_keys(
        self, outgoing: torch.Tensor, requests: list[list[int]], serves: list[list[int]]
    ) -> list[tuple[torch.Tensor, ...]]:
        """What each sender asks of this rank, as [sender][segment] rows of this rank."""
        incoming = torch.empty(sum(map(sum, serves)), dtype=torch.int64, device=self._device)
        sizes = [sum(row) for row in requests]
        wait(
            self._transport.all_to_all(incoming, outgoing[: sum(sizes)], [sum(row) for row in serves], sizes)
        )
        flat = torch.split(incoming, [count for row in serves for count in row])
        width = len(requests[0])
        return [flat[sender * width : (sender + 1) * width] for sender in range(len(serves))]

    def _owned(
        self,
        segments: list[tuple[torch.Tensor, ...]],
        num_micro_batches: int,
    ) -> list[Unique]:
        """Of each space the rows that anybody asks of this rank."""
        owned = []
        for index, (space, finder) in enumerate(zip(self._spaces, self._unique_rows, strict=True)):
            of_space = range(index * num_micro_batches, (index + 1) * num_micro_batches)
            asked = torch.cat([of_sender[s] for s in of_space for of_sender in segments])
            asked -= self._transport.rank * space.rows_per_rank
            owned.append(finder(asked))
        return owned

    def _shared(self, owned: list[Unique], before: Routed | None) -> list[Shared]:
        """Of each space which of those rows are in `before`."""
        if before is None:
            return []
        find = shared_positions_on_device if self._asynchronous else shared_positions
        return [find(route.owner_rows, mine.keys) for route, mine in zip(before.spaces, owned, strict=True)]

    def _space_route(
        self,
        index: int,
        num_micro_batches: int,
        inverses: list[torch.Tensor],
        requests: list[list[int]],
        serves: list[list[int]],
        owned: Unique,
    ) -> SpaceRoute:
        first = index * num_micro_batches
        of_space = range(first, first + num_micro_batches)
        serve_splits = [[row[s] for row in serves] for s in of_space]
        by_micro_batch = torch.split(owned.inverse, [sum(splits) for splits in serve_splits])
        return SpaceRoute(
            owned.keys,
            [
                MicroBatchRoute(inverses[s], [row[s] for row in requests], by_micro_batch[m], serve_splits[m])
                for m, s in enumerate(of_space)
            ],
        )


def _read(
    counts: torch.Tensor, received_counts: torch.Tensor, before: Routed | None
) -> tuple[list[list[int]], list[list[int]]]:
    """What route needs on the host, in one go: both counts and, unless it is known, how large `before` is."""
    unread = None if before is None else before.sizes
    both = torch.stack((counts, received_counts))
    if before is None or unread is None:
        sent, received = both.tolist()
        return sent, received
    values = torch.cat((both.view(-1), unread)).tolist()
    before.cut(values[both.numel() :])
    num_ranks, width = counts.shape
    rows = [values[start : start + width] for start in range(0, both.numel(), width)]
    return rows[:num_ranks], rows[num_ranks:]
