"""The meter: counts of stale reads against counts made from the batches alone, and against the proof."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from nestpipe import schedules
from nestpipe.freshness import FreshnessMeter
from nestpipe.optim import RowWiseAdagrad
from nestpipe.schedule import OpKind, Schedule
from nestpipe.verify import verify
from tests.distributed import run_workers
from tests.nestpipe.models import Data, Model
from tests.nestpipe.training import build, step_until_stop

NUM_STEPS = 9
ADAGRAD = RowWiseAdagrad(lr=0.05)
DATA = Data()
Keys = set[tuple[str, int]]


def without_sync(schedule: Schedule) -> Schedule:
    ops = (op for op in schedule.steady if op.kind is not OpKind.SYNC)
    kept = (replace(op, after=tuple(r for r in op.after if r.kind is not OpKind.SYNC)) for op in ops)
    return replace(schedule, name="losing", steady=tuple(kept))


SCHEDULES = {
    "sync": schedules.sync(),
    "dbp": schedules.dbp(),
    "fwp": schedules.fwp(3),
    "nestpipe": schedules.nestpipe(3),
    "uniemb": schedules.uniemb(),
    "losing": without_sync(schedules.dbp()),
}


def keys_of(data: Data, step: int, rank: int, num_workers: int) -> Keys:
    """Table and id of every lookup of one worker's batch."""
    model = Model()
    configs = [
        *model.ec.embedding_configs(),
        *model.words.embedding_configs(),
        *model.ebc.embedding_bag_configs(),
    ]
    features = data.batch(step, rank, num_workers).sparse_features.to_dict()
    return {
        (c.name, i) for c in configs for name in c.feature_names for i in features[name].values().tolist()
    }


def expected(data: Data, num_workers: int, staleness: int, num_steps: int = NUM_STEPS) -> Counter[int]:
    """Rows read by staleness, where an update is seen `staleness` steps late; with one micro-batch."""
    counts: Counter[int] = Counter()
    keys = [
        [keys_of(data, step, rank, num_workers) for rank in range(num_workers)] for step in range(num_steps)
    ]
    for step, of_ranks in enumerate(keys):
        recent = keys[max(0, step - staleness) : step]
        for key in (key for of_rank in of_ranks for key in of_rank):
            missed = [
                age for age, other in enumerate(reversed(recent), start=1) if key in set().union(*other)
            ]
            counts[max(missed, default=0)] += 1
    return counts


def meter(
    rank: int, num_workers: int, data: Data, name: str, options: dict[str, Any], num_epochs: int
) -> list[int]:
    counted = FreshnessMeter()
    with build(data, SCHEDULES[name], ADAGRAD, freshness=counted, **options) as pipeline:
        for epoch in range(num_epochs):
            batches = data.batches(rank, num_workers, NUM_STEPS, first_step=NUM_STEPS * epoch)
            assert len(step_until_stop(pipeline, batches)) == NUM_STEPS
        pipeline.drain()
    return counted.rows_by_staleness


def counts(num_workers: int, data: Data, name: str, num_epochs: int = 1, **options: Any) -> Counter[int]:
    total: Counter[int] = Counter()
    for of_rank in run_workers(meter, num_workers, data, name, options, num_epochs):
        total.update(dict(enumerate(of_rank)))
    return total


def nonzero(total: Counter[int]) -> dict[int, int]:
    return {steps: rows for steps, rows in total.items() if rows}


@pytest.mark.parametrize("keys", ["mixed", "equal", "none_on_last_rank"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_uniemb_reads_rows_one_step_stale(num_workers: int, keys: str) -> None:
    data = Data(keys=keys)
    assert nonzero(counts(num_workers, data, "uniemb")) == nonzero(expected(data, num_workers, staleness=1))


@pytest.mark.parametrize("name", ["sync", "dbp"])
def test_fresh_schedules_read_current_rows(name: str) -> None:
    assert nonzero(counts(2, DATA, name)) == nonzero(expected(DATA, 2, staleness=0))


@pytest.mark.parametrize("name", SCHEDULES)
def test_never_staler_than_proven(name: str) -> None:
    proof = verify(SCHEDULES[name])
    worst = max(nonzero(counts(2, DATA, name)))
    assert (worst > 0) == (proof.worst_staleness > 0)
    assert worst <= proof.worst_staleness


def test_without_sync_rows_that_two_batches_share_are_stale() -> None:
    assert nonzero(counts(2, DATA, "losing")) == nonzero(expected(DATA, 2, staleness=1))


@pytest.mark.parametrize("sync_every", [1, 2])
def test_replicas(sync_every: int) -> None:
    assert max(nonzero(counts(4, DATA, "nestpipe", replicas=2, sync_every=sync_every))) == 0


def test_a_second_epoch_starts_fresh() -> None:
    assert max(nonzero(counts(2, DATA, "dbp", num_epochs=2))) == 0


def _reload(rank: int, num_workers: int) -> tuple[list[int], list[int]]:
    counted = FreshnessMeter()
    with build(DATA, SCHEDULES["uniemb"], ADAGRAD, freshness=counted) as pipeline:
        batches = DATA.batches(rank, num_workers, NUM_STEPS)
        for _ in range(3):
            pipeline.progress(batches)
        pipeline.load_state_dict(pipeline.state_dict())
        before = counted.rows_by_staleness
        pipeline.progress(batches)
        pipeline.drain()
        return before, counted.rows_by_staleness


def test_loading_a_state_refreshes_what_was_read_ahead() -> None:
    before, after = run_workers(_reload, 1)[0]
    assert len(before) == len(after) == 2
    assert after[1] == before[1]
    assert after[0] - before[0] == len(keys_of(DATA, 3, 0, 1))


def test_a_meter_belongs_to_one_pipeline() -> None:
    counted = FreshnessMeter()
    with build(DATA, SCHEDULES["sync"], ADAGRAD, freshness=counted), pytest.raises(AssertionError):
        build(DATA, SCHEDULES["sync"], ADAGRAD, freshness=counted)
