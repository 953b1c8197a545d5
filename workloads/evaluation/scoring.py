"""Scores of items for a block of users, with ties that do not depend on how the work is cut.

A score is the cosine of a user's state and an item's row. It is computed in float64 and rounded to a
multiple of 2**-32, far above the error of the product and far below what a float32 model can tell apart,
so that equal rows tie wherever they lie. Among equal scores the lower item id comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

NUM_TOP = 50
"""Length of a user's list of best items."""

_STEPS_A_UNIT = 2.0**32
# An item's key in its chunk is the score times this, plus a part that is smaller the higher the id.
_TIE_BITS = 21
MAX_CHUNK_ROWS = 1 << _TIE_BITS
_HIDDEN = torch.iinfo(torch.int64).min
NO_ITEM = -1


def directions(vectors: torch.Tensor) -> torch.Tensor:
    """`vectors` [n, dim] at unit length, in float64; zeros stay zeros, as in the next-item loss."""
    return functional.normalize(vectors.detach().double(), dim=1)


def pair_scores(queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The score of each query for the row beside it, as a number of steps: [n, dim] x 2 -> [n], int64."""
    return (queries * rows).sum(dim=1).mul_(_STEPS_A_UNIT).round_().long()


@dataclass(frozen=True)
class Seen:
    """Pairs of a query and an item that it has seen, in order of the items: [num_pairs] each."""

    items: torch.Tensor
    queries: torch.Tensor

    @classmethod
    def of(cls, lengths: NDArray[np.int64], items: NDArray[np.int64], device: torch.device) -> Seen:
        """From the `items` of all queries, `lengths` of them each; the pairs are on `device`."""
        queries = np.repeat(np.arange(len(lengths)), lengths)
        order = np.argsort(items, kind="stable")
        pairs = (torch.from_numpy(part[order]).to(device) for part in (items, queries))
        return cls(*pairs)

    def hide(self, keys: torch.Tensor, ids: torch.Tensor) -> None:
        """Take the pairs among `keys` [num_queries, n] of the ascending item `ids` [n] out of the ranking."""
        ends = torch.stack([ids[0], ids[-1] + 1])
        # Sorting made these a slice, however many items the users have seen.
        start, stop = torch.searchsorted(self.items, ends).tolist()
        items, queries = self.items[start:stop], self.queries[start:stop]
        places = torch.searchsorted(ids, items)
        found = ids[places] == items
        keys[queries[found], places[found]] = _HIDDEN


class Block:
    """What is known so far about the ranking of a block of users, item chunk by item chunk.

    `counts` [n] is the number of items before the target, `top_scores` and `top_items` [n, NUM_TOP] are the
    best items so far, the best first, with NO_ITEM at the end where there are fewer.
    """

    def __init__(
        self, queries: torch.Tensor, targets: torch.Tensor, target_scores: torch.Tensor, seen: Seen
    ) -> None:
        """`queries` [n, dim] are directions, `target_scores` [n] those of the item `targets` [n]."""
        self._queries = queries
        self._targets = targets
        self._target_scores = target_scores
        self._seen = seen
        self.counts = torch.zeros_like(targets)
        self.top_scores = torch.full((len(targets), NUM_TOP), _HIDDEN, device=targets.device)
        self.top_items = torch.full_like(self.top_scores, NO_ITEM)

    def add(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Take in the items `ids` [n], ascending, at most MAX_CHUNK_ROWS, with the directions `rows`."""
        assert 0 < len(ids) <= MAX_CHUNK_ROWS
        keys = self._keys(rows)
        self._seen.hide(keys, ids)
        places = torch.searchsorted(ids, self._targets)
        target_keys = self._target_scores * MAX_CHUNK_ROWS + (MAX_CHUNK_ROWS - 1 - places)
        # The target competes though it was seen, and with the one score that all workers know: the product
        # here might be rounded to the other side.
        own = (ids[places.clamp(max=len(ids) - 1)] == self._targets).nonzero().squeeze(1)
        keys[own, places[own]] = target_keys[own]
        self.counts += (keys > target_keys.unsqueeze(1)).sum(dim=1)
        self._merge(keys, ids)

    def _keys(self, rows: torch.Tensor) -> torch.Tensor:
        """A number for each query and row, larger the earlier it ranks: [num_queries, num_rows], int64."""
        scores = (self._queries @ rows.T).mul_(_STEPS_A_UNIT).round_().long()
        places = torch.arange(len(rows), device=rows.device)
        return scores.mul_(MAX_CHUNK_ROWS).add_(MAX_CHUNK_ROWS - 1 - places)

    def _merge(self, keys: torch.Tensor, ids: torch.Tensor) -> None:
        best = keys.topk(min(NUM_TOP, keys.shape[1]), dim=1).values
        places = MAX_CHUNK_ROWS - 1 - (best & (MAX_CHUNK_ROWS - 1))
        shown = best != _HIDDEN
        items = torch.where(shown, ids[places.clamp(max=len(ids) - 1)], NO_ITEM)
        scores = torch.where(shown, best >> _TIE_BITS, _HIDDEN)
        self.top_scores, self.top_items = best_items(
            torch.cat([self.top_scores, scores], dim=1), torch.cat([self.top_items, items], dim=1)
        )


def best_items(scores: torch.Tensor, items: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best of each user's items, k >= NUM_TOP, and their scores: [n, k] x 2 -> [n, NUM_TOP] x 2."""
    items, order = items.sort(dim=1, stable=True)
    scores, by_score = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    return scores[:, :NUM_TOP], items.gather(1, by_score)[:, :NUM_TOP]
