"""The full ranking of held-out items, with the item table spread over the workers.

The last states of a chunk of users are gathered on every worker, each scores the rows that it owns, and
what they counted is added up: neither the item table nor the scores ever have to fit one worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.distributed import ProcessGroup

from workloads.evaluation.leave_one_out import LeaveOneOut
from workloads.evaluation.metrics import ranking_metrics
from workloads.evaluation.scoring import Block, Seen, best_items, directions, pair_scores
from workloads.evaluation.workers import Workers
from workloads.interface import EvaluationResult, RowsOf, SequenceBatch

_TABLE = "item"


@dataclass(frozen=True)
class Chunks:
    """How much of a ranking is in memory at a time; the result does not depend on it.

    A chunk is the users whose states are gathered, for which the item table is read twice: at most `users`
    over all workers, and so few that they have seen about `seen_items` (for the defaults and dim 256 that
    is 64 MiB of states and 256 MiB of seen items). Scores exist for `block_users` times `block_rows`.
    """

    users: int = 1 << 15
    seen_items: int = 1 << 24
    block_users: int = 128
    block_rows: int = 1 << 13


class _States(NamedTuple):
    """Users [n] on the CPU and the directions of their last states [n, dim], float64."""

    users: torch.Tensor
    queries: torch.Tensor


class _Ranked(NamedTuple):
    """Users [n], the ranks of their targets [n] and, on rank 0, their best items [n, NUM_TOP]."""

    users: torch.Tensor
    ranks: torch.Tensor
    top_items: torch.Tensor | None


def evaluate_ranking(
    results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]],
    rows_of: RowsOf,
    group: ProcessGroup | None,
    split: LeaveOneOut,
    chunks: Chunks | None = None,
) -> EvaluationResult:
    """A collective: rank of each user's held-out item among the items not seen in training, and metrics.

    The rank is 1 + the number of items with a higher score, or with an equal score and a lower id. Scores
    are cosines of a user's last state, the model's output [num_samples, dim], and the rows of the table
    `item`; `scoring` says how they are rounded. The target competes even where the user has seen it
    before. The other arguments are those of `Evaluable.evaluate`. ValueError on every worker where nothing
    was evaluated, a state or row is not finite, or `rows_of` does not give each item once.
    """
    workers, chunks = Workers(group), chunks or Chunks()
    states = _collected(results, workers)
    num_users = _num_checked(states, workers)
    parts = [
        _rank(chunk, rows_of, split, workers, chunks)
        for chunk in _chunks_of(states, num_users, split, workers, chunks)
    ]
    # In one order whatever the number of workers, and so with the same rounding of the means.
    users = torch.cat([part.users for part in parts])
    order = users.argsort(stable=True)
    ranks = torch.cat([part.ranks for part in parts])[order]
    metrics = ranking_metrics(ranks)
    top_items = [part.top_items for part in parts if part.top_items is not None]
    if not top_items:
        return EvaluationResult(metrics)
    return EvaluationResult(metrics, users[order], ranks, torch.cat(top_items)[order])


def _collected(
    results: Iterator[tuple[SequenceBatch, torch.Tensor, torch.Tensor]], workers: Workers
) -> _States:
    """This worker's users and states; a worker without any takes the dim from the others."""
    users, queries = [], []
    for batch, _, output in results:
        users.append(batch.sample_ids.cpu())
        queries.append(directions(output))
    dim = workers.largest(queries[0].shape[1] if queries else 0)
    if not users:
        return _States(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dim, dtype=torch.float64))
    return _States(torch.cat(users), torch.cat(queries))


def _num_checked(states: _States, workers: Workers) -> int:
    """The number of users of all workers."""
    num_infinite = int((~states.queries.isfinite()).any(dim=1).sum())
    num_users, all_infinite = workers.sum(torch.tensor([len(states.users), num_infinite])).tolist()
    if num_users == 0:
        raise ValueError("no user has a held-out item: evaluation needs users with at least two items")
    _require_finite(all_infinite, f"of {num_users} users' states")
    return int(num_users)


def _require_finite(num_infinite: int, what: str) -> None:
    if num_infinite:
        raise ValueError(
            f"{num_infinite} {what} are not finite: the training has diverged; try a smaller learning rate "
            "or clipping"
        )


def _chunks_of(
    states: _States, num_users: int, split: LeaveOneOut, workers: Workers, chunks: Chunks
) -> Iterator[_States]:
    """Gathered states, chunk by chunk; as many chunks on every worker."""
    num_seen = int(workers.sum(torch.tensor([split.num_seen(states.users.numpy())])))
    fitting = min(chunks.users, chunks.seen_items * num_users // num_seen)
    share = max(1, fitting // workers.size)
    for first in range(0, workers.largest(len(states.users)), share):
        own = slice(first, first + share)
        queries = workers.all_gather(states.queries[own].cpu())
        yield _States(workers.all_gather(states.users[own]), queries.to(states.queries.device))


def _rank(chunk: _States, rows_of: RowsOf, split: LeaveOneOut, workers: Workers, chunks: Chunks) -> _Ranked:
    items = _Items(rows_of, chunks.block_rows, chunk.queries.device)
    targets = torch.from_numpy(split.targets(chunk.users.numpy())).to(items.device)
    target_scores = _target_scores(chunk.queries, targets, items, workers)
    blocks = []
    for first in range(0, len(targets), chunks.block_users):
        part = slice(first, first + chunks.block_users)
        seen = Seen.of(*split.seen(chunk.users[part].numpy()), items.device)
        blocks.append(Block(chunk.queries[part], targets[part], target_scores[part], seen))
    num_rows = num_infinite = 0
    for ids, rows in items.chunks():
        num_rows += len(ids)
        num_infinite += int((~rows.isfinite()).any(dim=1).sum())
        for block in blocks:
            block.add(ids, rows)
    all_rows, all_infinite = workers.sum(torch.tensor([num_rows, num_infinite])).tolist()
    if all_rows != split.histories.num_items:
        raise ValueError(f"the workers gave {all_rows} rows of {split.histories.num_items} items")
    _require_finite(all_infinite, f"of {all_rows} items' rows")
    counts = workers.sum(torch.cat([block.counts for block in blocks]).cpu())
    return _Ranked(chunk.users, counts + 1, _top_items(blocks, workers))


@dataclass(frozen=True)
class _Items:
    """This worker's items, read anew by every call."""

    rows_of: RowsOf
    block_rows: int
    device: torch.device

    def chunks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Ids [n], ascending, and the directions of their rows [n, dim]; n is at most `block_rows`."""
        for ids, rows in self.rows_of(_TABLE):
            for some_ids, some_rows in zip(
                ids.split(self.block_rows), rows.split(self.block_rows), strict=True
            ):
                if len(some_ids) == 0:
                    continue
                ascending, order = some_ids.sort()
                yield ascending.to(self.device), directions(some_rows[order].to(self.device))


def _target_scores(
    queries: torch.Tensor, targets: torch.Tensor, items: _Items, workers: Workers
) -> torch.Tensor:
    """The score of each query's target, which its owner computes: [n], int64, on every worker."""
    # The second row counts how many workers and chunks had the item.
    found = torch.zeros(2, len(targets), dtype=torch.int64)
    for ids, rows in items.chunks():
        places = torch.searchsorted(ids, targets).clamp(max=len(ids) - 1)
        own = (ids[places] == targets).nonzero().squeeze(1)
        found[0, own.cpu()] = pair_scores(queries[own], rows[places[own]]).cpu()
        found[1, own.cpu()] += 1
    scores, counts = workers.sum(found)
    num_wrong = int((counts != 1).sum())
    if num_wrong:
        raise ValueError(
            f"the workers gave the rows of {num_wrong} of {len(targets)} held-out items not exactly once"
        )
    return scores.to(queries.device)


def _top_items(blocks: list[Block], workers: Workers) -> torch.Tensor | None:
    """Every worker's best items merged: [n, NUM_TOP] on rank 0, None elsewhere."""
    scores = workers.gather(torch.cat([block.top_scores for block in blocks]).cpu())
    items = workers.gather(torch.cat([block.top_items for block in blocks]).cpu())
    if scores is None or items is None:
        return None
    side_by_side = [
        part.unflatten(0, (workers.size, -1)).transpose(0, 1).flatten(1) for part in (scores, items)
    ]
    return best_items(*side_by_side)[1]
