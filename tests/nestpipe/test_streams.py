"""Ends of the data: uneven workers, what is handed back, epochs, and bad batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from nestpipe import RowWiseAdagrad, schedules
from nestpipe.schedule import Schedule
from tests.distributed import run_workers
from tests.nestpipe.models import Batch, Data, Model
from tests.nestpipe.reference import train as reference
from tests.nestpipe.training import build, difference, step_until_stop, weights

DATA = Data(dtype=torch.float64)
OPTIMIZER = RowWiseAdagrad(lr=0.05)
SCHEDULES = [schedules.sync(), schedules.nestpipe(3), schedules.uniemb()]


def _uneven(rank: int, num_workers: int, schedule: Schedule) -> tuple[int, int, int, dict[str, torch.Tensor]]:
    """Worker w has 3 + 4w batches: all stop after 3, and go on when the short one has more."""
    own = list(DATA.batches(rank, num_workers, 3 + 4 * rank))
    with build(DATA, schedule, OPTIMIZER) as pipeline:
        first = len(step_until_stop(pipeline, iter(own)))
        kept = [id(batch) for batch in own]
        handed_back = [kept.index(id(batch)) for batch in pipeline.untrained]
        assert handed_back == list(range(3, 3 + len(handed_back)))
        more = DATA.batches(rank, num_workers, 2, first_step=3)
        second = len(step_until_stop(pipeline, more))
        return first, second, len(handed_back), weights(pipeline.state_dict())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_uneven_ends_stop_everybody_and_a_new_iterator_goes_on(schedule: Schedule) -> None:
    results = run_workers(_uneven, 3, schedule)
    assert [(first, second) for first, second, _, _ in results] == [(3, 2)] * 3
    assert results[0][2] == 0
    staleness = 0 if schedule.fresh else None
    if staleness is not None:
        assert difference(results[0][3], reference(DATA, OPTIMIZER, 3, 5)) < 1e-12


class Resuming:
    """An iterator that ends after each `pause` batches and goes on when it is asked again."""

    def __init__(self, batches: list[Batch], pauses: list[int]) -> None:
        self._batches, self._pauses, self._given = batches, pauses, 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._given == len(self._batches) or self._given in self._pauses:
            self._pauses = [p for p in self._pauses if p != self._given]
            raise StopIteration
        self._given += 1
        return self._batches[self._given - 1]


def _same_iterator(
    rank: int, num_workers: int, schedule: Schedule
) -> tuple[list[int], dict[str, torch.Tensor]]:
    batches = list(DATA.batches(rank, num_workers, 8))
    iterator = Resuming(batches, [3] if rank == 0 else [])
    with build(DATA, schedule, OPTIMIZER) as pipeline:
        lengths = [len(step_until_stop(pipeline, iterator)) for _ in range(3)]
        return lengths, weights(pipeline.state_dict())


@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=lambda s: s.name)
def test_the_same_iterator_gets_back_what_was_drawn(schedule: Schedule) -> None:
    """Rank 0 pauses after 3 batches; what rank 1 had drawn by then is trained, in order, not skipped."""
    results = run_workers(_same_iterator, 2, schedule)
    assert [lengths for lengths, _ in results] == [[3, 5, 0]] * 2
    assert difference(results[0][1], reference(DATA, OPTIMIZER, 2, 8)) < 1e-12


def _switching(rank: int, num_workers: int) -> tuple[int, dict[str, torch.Tensor]]:
    """A new iterator in mid-stream: batches drawn from the old one are trained first."""
    old, new = DATA.batches(rank, num_workers, 100), DATA.batches(rank, num_workers, 3, first_step=7)
    with build(DATA, schedules.nestpipe(2), OPTIMIZER) as pipeline:
        for _ in range(3):
            pipeline.progress(old)
        steps = len(step_until_stop(pipeline, new))
        return steps, weights(pipeline.state_dict())


def test_switching_iterators_loses_no_batch() -> None:
    results = run_workers(_switching, 2)
    assert results[0][0] == 4 + 3
    assert difference(results[0][1], reference(DATA, OPTIMIZER, 2, 10)) < 1e-12


def _empty(rank: int, num_workers: int) -> int:
    with build(DATA, schedules.nestpipe(2), OPTIMIZER) as pipeline:
        none = len(step_until_stop(pipeline, iter([])))
        return none + len(step_until_stop(pipeline, DATA.batches(rank, num_workers, 2)))


def test_an_empty_iterator_stops_at_once() -> None:
    assert run_workers(_empty, 2) == [2, 2]


def _with_ids(batch: Batch, ids: torch.Tensor) -> Batch:
    keys = batch.sparse_features
    changed = KeyedJaggedTensor(keys.keys(), ids, lengths=keys.lengths())
    return Batch(changed, batch.dense, batch.labels)


def _bad_batch(rank: int, num_workers: int, kind: str, schedule: Schedule) -> tuple[type, str]:
    batches = list(DATA.batches(rank, num_workers, 6))
    if rank == 1:
        ids = batches[2].sparse_features.values().clone()
        if kind == "negative":
            ids[0] = -3
        elif kind == "too large":
            ids[0] = 53
        elif kind == "float":
            ids = ids.float()
        batches[2] = _with_ids(batches[2], ids)
        if kind == "unknown feature":
            keys = batches[2].sparse_features
            renamed = KeyedJaggedTensor(["klicked", *keys.keys()[1:]], keys.values(), lengths=keys.lengths())
            batches[2] = Batch(renamed, batches[2].dense, batches[2].labels)

    def generator() -> Iterator[Batch]:
        for step, batch in enumerate(batches):
            if kind == "iterator" and rank == 1 and step == 2:
                raise OSError("disk gone")
            yield batch

    pipeline = build(DATA, schedule, OPTIMIZER)
    try:
        step_until_stop(pipeline, generator())
    except Exception as error:
        return type(error), str(error)
    finally:
        pipeline.close()
    raise AssertionError("the bad batch passed")


@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=lambda s: s.name)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("negative", "rank 1: feature 'clicked' has id -3, but table 'item' has 53 rows"),
        ("too large", "rank 1: feature 'clicked' has id 53, but table 'item' has 53 rows"),
        ("float", "rank 1: ids must be int64 or int32"),
        ("unknown feature", "table 'item' of module 'ec' reads feature 'clicked', but the batch has only"),
        ("iterator", "disk gone"),
    ],
)
def test_every_rank_ends_with_the_message(kind: str, expected: str, schedule: Schedule) -> None:
    results = run_workers(_bad_batch, 2, kind, schedule)
    for _, message in results:
        assert expected in message
    assert results[0][0] is ValueError
    assert results[1][0] is (OSError if kind == "iterator" else ValueError)
    assert results[0][1].startswith("stopped because rank 1 could not go on: ")


class Meddling(Model):
    """Changes its sparse input before the lookup, in place or by a copy."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        keys = batch.sparse_features
        if self.in_place:
            keys.values().clamp_(max=5)
        else:
            keys = KeyedJaggedTensor(keys.keys(), keys.values().clamp(max=5), lengths=keys.lengths())
        return super().forward(Batch(keys, batch.dense, batch.labels))


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_changes_its_keys_is_told(in_place: bool) -> None:
    from nestpipe import NestPipe

    with NestPipe(
        Meddling(in_place),
        sparse_optimizer=OPTIMIZER,
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ) as pipeline:
        with pytest.raises(
            ValueError, match="changed its sparse input before the lookup in module 'ec'"
        ) as caught:
            pipeline.progress(Data().batches(0, 1, 3))
        assert any("compute(0, 0) on rank 0" in note for note in caught.value.__notes__)
        with pytest.raises(ValueError, match="changed its sparse input"):
            pipeline.progress(Data().batches(0, 1, 3))


def test_a_model_may_pass_on_part_of_its_keys() -> None:
    class Splitting(Model):
        def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            keys = batch.sparse_features
            first, _ = keys.split([5, 1])
            self.ec(first)
            return super().forward(batch)

    from nestpipe import NestPipe

    with NestPipe(
        Splitting(),
        sparse_optimizer=OPTIMIZER,
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ) as pipeline:
        assert len(step_until_stop(pipeline, Data().batches(0, 1, 3))) == 3


def test_calls_outside_progress_and_after_close_say_so() -> None:
    pipeline = build(Data(), schedules.sync(), OPTIMIZER)
    with pytest.raises(RuntimeError, match="called outside NestPipe"):
        pipeline.model(Data().batch(0, 0, 1))
    pipeline.close()
    pipeline.close()
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.progress(iter([]))
