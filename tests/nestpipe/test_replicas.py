"""Two-dimensional sparse parallelism: groups of workers as replicas, against independent computations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nestpipe import NestPipe, Tracer, replicas, schedules
from nestpipe.buffers import RowBuffer
from nestpipe.optim import SGD, Adam, RowWiseAdagrad, SparseOptimizer
from nestpipe.replicas import Replicas
from nestpipe.routing import RowSpace
from nestpipe.schedule import OpKind
from nestpipe.table import HostTable
from nestpipe.transport import Transport, default_group
from tests.distributed import run_workers
from tests.nestpipe.models import Data, Model
from tests.nestpipe.reference import train as reference
from tests.nestpipe.test_failures import Breaking
from tests.nestpipe.training import State, build, difference, step_until_stop, train, weights

NUM_STEPS = 10
"""Not a multiple of 3: the last step leaves the groups apart."""
DATA = Data(dtype=torch.float64)
ADAGRAD = RowWiseAdagrad(lr=0.05)
OPTIMIZERS: list[SparseOptimizer] = [ADAGRAD, SGD(lr=0.3)]
NAMED = {"sync": schedules.sync(), "dbp": schedules.dbp(), "nestpipe": schedules.nestpipe(3)}


def after(sync_every: int) -> range:
    """The numbers of steps after which the groups are averaged."""
    return range(sync_every, 100, sync_every)


def run(num_workers: int, optimizer: SparseOptimizer, num_replicas: int, sync_every: int) -> Any:
    options = {"replicas": num_replicas, "sync_every": sync_every}
    return run_workers(train, num_workers, DATA, NAMED, optimizer, NUM_STEPS, options)


SHAPES = [(2, 2), (3, 3), (4, 2)]
CASES = [(*shape, every, optimizer) for shape in SHAPES for every in (1, 3) for optimizer in OPTIMIZERS]


@pytest.mark.parametrize(
    ("num_workers", "num_groups", "sync_every", "optimizer"),
    [*CASES, (2, 2, 3, Adam(lr=0.01))],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_every_schedule_computes_the_reference(
    num_workers: int, num_groups: int, sync_every: int, optimizer: SparseOptimizer
) -> None:
    expected = reference(
        DATA, optimizer, num_workers, NUM_STEPS, num_groups=num_groups, sync_after=after(sync_every)
    )
    # The mean of SGD's steps is the step of the mean gradient, so averaging every step changes nothing.
    same = isinstance(optimizer, SGD) and sync_every == 1
    assert (difference(reference(DATA, optimizer, num_workers, NUM_STEPS), expected) < 1e-12) is same
    results = run(num_workers, optimizer, num_groups, sync_every)
    for name, (state, losses) in results[0].items():
        assert len(losses) == NUM_STEPS
        assert difference(state, expected) < 1e-12, name
    assert difference(results[0]["dbp"][0], results[0]["sync"][0]) == 0.0
    assert all(result["dbp"][0] == {} for result in results[1:])


@pytest.mark.parametrize("keys", ["equal", "distinct", "none_on_last_rank", "zero_feature"])
def test_awkward_keys(keys: str) -> None:
    data = Data(keys=keys, dtype=torch.float64)
    expected = reference(data, ADAGRAD, 4, NUM_STEPS, num_groups=2, sync_after=after(2))
    options = {"replicas": 2, "sync_every": 2}
    for name, (state, _) in run_workers(train, 4, data, NAMED, ADAGRAD, NUM_STEPS, options)[0].items():
        assert difference(state, expected) < 1e-12, name


@pytest.mark.parametrize("sync_every", [1, 3])
def test_stale_rows_are_stale_inside_a_group_and_meet_in_the_average(sync_every: int) -> None:
    expected = reference(DATA, ADAGRAD, 2, NUM_STEPS, staleness=1, num_groups=2, sync_after=after(sync_every))
    options = {"replicas": 2, "sync_every": sync_every}
    named = {"uniemb": schedules.uniemb()}
    state, _ = run_workers(train, 2, DATA, named, ADAGRAD, NUM_STEPS, options)[0]["uniemb"]
    assert difference(state, expected) < 1e-12


def test_a_window_that_is_chosen_on_the_way() -> None:
    expected = reference(DATA, ADAGRAD, 2, 26, num_groups=2, sync_after=after(2))
    named = {"chosen": schedules.nestpipe_chosen()}
    options = {"replicas": 2, "sync_every": 2}
    state, _ = run_workers(train, 2, DATA, named, ADAGRAD, 26, options)[0]["chosen"]
    assert difference(state, expected) < 1e-12


def _train_marking_all(rank: int, num_workers: int, num_groups: int) -> State:
    def mark_all(self: Replicas, buffers: Sequence[Any]) -> None:
        for touched in self._touched:
            touched.fill_(True)

    Replicas.mark = mark_all  # type: ignore[method-assign]
    options = {"replicas": num_groups, "sync_every": 3}
    return train(rank, num_workers, DATA, {"all": NAMED["nestpipe"]}, ADAGRAD, NUM_STEPS, options)["all"][0]


@pytest.mark.parametrize(("num_workers", "num_groups"), [(4, 2), (3, 3)])
def test_averaging_touched_rows_is_averaging_all(num_workers: int, num_groups: int) -> None:
    touched = run(num_workers, ADAGRAD, num_groups, 3)[0]["nestpipe"][0]
    assert difference(touched, run_workers(_train_marking_all, num_workers, num_groups)[0]) < 1e-14


def _tables_after(rank: int, num_workers: int, num_steps: int) -> list[torch.Tensor]:
    """This rank's own rows and states after steps that are averaged by threes."""
    with build(DATA, NAMED["nestpipe"], ADAGRAD, replicas=2, sync_every=3) as pipeline:
        batches = DATA.batches(rank, num_workers, num_steps + 4)
        for _ in range(num_steps):
            pipeline.progress(batches)
        pipeline.drain()
        tables = pipeline._engine.tables
        # torch leaves the rows that no key names uninitialised
        used = [-(-(t.space.num_rows - rank // 2) // 2) for t in tables]
        return [v[:n].clone() for t, n in zip(tables, used, strict=True) for v in (t.weight, t.state["sum"])]


def test_replicas_are_equal_to_the_bit_after_an_average_and_differ_before() -> None:
    for num_steps, alike in ((6, True), (5, False)):
        tables = run_workers(_tables_after, 4, num_steps)
        for first in (0, 2):
            pairs = zip(tables[first], tables[first + 1], strict=True)
            assert all(torch.equal(a, b) is alike for a, b in pairs)


def _averaged_steps(rank: int, num_workers: int, num_replicas: int) -> tuple[list[int], int]:
    tracer = Tracer()
    groups: list[Any] = []
    new_group = dist.new_group

    def counted(*args: Any, **options: Any) -> Any:
        groups.append(new_group(*args, **options))
        return groups[-1]

    dist.new_group = counted
    options = {"replicas": num_replicas, "sync_every": 3, "tracer": tracer}
    with build(DATA, NAMED["nestpipe"], ADAGRAD, **options) as pipeline:
        step_until_stop(pipeline, DATA.batches(rank, num_workers, NUM_STEPS))
    return [e.op.step for e in tracer.take() if e.op.kind is OpKind.AVERAGE], len(groups)


def test_one_replica_adds_no_op_and_no_group() -> None:
    assert run_workers(_averaged_steps, 2, 1) == [([], 3)] * 2
    assert run_workers(_averaged_steps, 2, 2)[0][0] == [2, 5, 8]


def _unequal_initial_rows(rank: int, num_workers: int) -> list[torch.Tensor]:
    model = Model().to(torch.float64)
    for collection in (model.ec, model.words, model.ebc):
        collection.to("meta")
    torch.manual_seed(rank)
    with NestPipe(
        model,
        sparse_optimizer=ADAGRAD,
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        replicas=2,
    ) as pipeline:
        return [table.weight.clone() for table in pipeline._engine.tables]


def test_replicas_start_from_the_same_rows() -> None:
    first, second = run_workers(_unequal_initial_rows, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


MARKS: list[list[list[int]]] = [
    [[], [], []],
    [[], [7], []],
    [[0, 99], [0, 1, 2], [50]],
    [list(range(100)), [], [99]],
    [list(range(0, 100, 2)), list(range(1, 100, 2)), [3]],
]


def _average_alone(rank: int, num_workers: int) -> list[list[torch.Tensor]]:
    """Tables and a buffer that was read ahead, after averaging, for each of MARKS."""
    replicas.CHUNK_BYTES = 300  # seven rows of 40 bytes
    results = []
    for marks in MARKS:
        table = HostTable(RowSpace(4, torch.float64, 100, 1), ADAGRAD)
        table.weight.copy_(torch.arange(400.0).view(100, 4) * (rank + 1))
        table.state["sum"].copy_(torch.arange(100.0).view(100, 1) + rank)
        marked, ahead = (RowBuffer(table.space, ADAGRAD, torch.device("cpu")) for _ in range(2))
        averaging = Replicas([table], ADAGRAD, Transport(default_group()))
        marked.resize(torch.tensor(marks[rank], dtype=torch.int64))
        averaging.mark([marked])
        ahead.resize(torch.tensor([2, 7, 50, 98]))
        table.read(ahead.keys, ahead.rows, ahead.state)
        averaging.average([ahead])
        assert not any(touched.any() for touched in averaging._touched)
        results.append([table.weight, table.state["sum"], ahead.rows.clone(), ahead.state["sum"].clone()])
    return results


def test_an_average_by_itself() -> None:
    results = run_workers(_average_alone, 3)
    for index, marks in enumerate(MARKS):
        rows = sorted({row for of_rank in marks for row in of_rank})
        for rank in range(3):
            weight = torch.arange(400.0, dtype=torch.float64).view(100, 4) * (rank + 1)
            total = torch.arange(100.0, dtype=torch.float64).view(100, 1) + rank
            weight[rows] *= 2 / (rank + 1)  # the mean of one, two and three times
            total[rows] += 1 - rank
            expected = [weight, total, weight[[2, 7, 50, 98]], total[[2, 7, 50, 98]]]
            for got, wanted in zip(results[rank][index], expected, strict=True):
                assert torch.allclose(got, wanted, rtol=1e-15, atol=0.0)


def _uneven(rank: int, num_workers: int, lengths: list[int]) -> tuple[int, int, int]:
    with build(DATA, NAMED["nestpipe"], ADAGRAD, replicas=2, sync_every=2) as pipeline:
        steps = len(step_until_stop(pipeline, DATA.batches(rank, num_workers, lengths[rank])))
        left = len(pipeline.untrained)
        again = len(step_until_stop(pipeline, DATA.batches(rank, num_workers, 3)))
        return steps, left, again


@pytest.mark.parametrize("lengths", [[7, 5, 9, 6], [0, 4, 4, 4], [4, 4, 4, 0], [3, 3, 3, 2]], ids=str)
def test_all_groups_stop_at_the_same_step(lengths: list[int]) -> None:
    shortest = min(lengths)
    results = run_workers(_uneven, 4, lengths)
    assert [(steps, again) for steps, _, again in results] == [(shortest, 3)] * 4
    assert all(left <= length - shortest for (_, left, _), length in zip(results, lengths, strict=True))


def _bad_id(rank: int, num_workers: int, culprit: int) -> tuple[int, str]:
    batches = [DATA.batch(step, rank, num_workers) for step in range(6)]
    if rank == culprit:
        batches[3].sparse_features.values()[0] = 53
    with build(DATA, NAMED["nestpipe"], ADAGRAD, replicas=2, sync_every=2) as pipeline:
        source, steps = iter(batches), 0
        try:
            while True:
                pipeline.progress(source)
                steps += 1
        except ValueError as error:
            return steps, str(error)


@pytest.mark.parametrize("culprit", [0, 3])
def test_a_bad_id_in_one_group_stops_all(culprit: int) -> None:
    results = run_workers(_bad_id, 4, culprit)
    message = f"rank {culprit}: feature 'clicked' has id 53, but table 'item' has 53 rows"
    for rank, (steps, text) in enumerate(results):
        assert steps == 3
        assert message in text
        assert text.startswith(f"stopped because rank {culprit} could not go on") is (rank != culprit)


def _part(
    rank: int, num_workers: int, num_replicas: int, state: State | None, first: int, last: int
) -> State:
    with build(DATA, NAMED["nestpipe"], ADAGRAD, replicas=num_replicas, sync_every=3) as pipeline:
        if state is not None:
            pipeline.load_state_dict(state if rank == 0 else {})
        step_until_stop(pipeline, DATA.batches(rank, num_workers, last - first, first_step=first))
        return pipeline.state_dict()


def test_a_loaded_run_goes_on_like_an_uninterrupted_one() -> None:
    state = run_workers(_part, 4, 2, None, 0, 6)[0]
    resumed = run_workers(_part, 4, 2, state, 6, 11)[0]
    expected = reference(DATA, ADAGRAD, 4, 11, num_groups=2, sync_after=after(3))
    assert difference(weights(resumed), expected) < 1e-12


@pytest.mark.parametrize(("num_workers", "num_replicas"), [(1, 1), (3, 3), (4, 2), (4, 1)])
def test_state_moves_between_shapes(num_workers: int, num_replicas: int) -> None:
    state = run_workers(_part, 4, 2, None, 0, 5)[0]
    results = run_workers(_part, num_workers, num_replicas, state, 5, 5)
    assert results[0].keys() == state.keys()
    assert all(torch.equal(results[0][n].view(-1), state[n].view(-1)) for n in state)
    assert all(other == {} for other in results[1:])


def _load_in_mid_stream(rank: int, num_workers: int, state: State) -> State:
    """Rows that were read ahead, and what one group alone had learnt, must not survive a load."""
    with build(DATA, NAMED["nestpipe"], ADAGRAD, replicas=2, sync_every=4) as pipeline:
        batches = DATA.batches(rank, num_workers, 11)
        for _ in range(6):
            pipeline.progress(batches)
        pipeline.load_state_dict(state if rank == 0 else {})
        step_until_stop(pipeline, batches)
        return weights(pipeline.state_dict())


def test_loading_in_mid_stream_replaces_every_replica() -> None:
    state = run_workers(_part, 4, 2, None, 0, 6)[0]
    reloaded = run_workers(_load_in_mid_stream, 4, state)[0]
    expected = reference(DATA, ADAGRAD, 4, 11, num_groups=2, sync_after={3, 6, 8})
    assert difference(reloaded, expected) < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 2}, "3 workers cannot be split into replicas=2 equal groups; choose"),
        ({"replicas": 0}, "3 workers cannot be split into replicas=0 "),
        ({"replicas": 3, "sync_every": 0}, "sync_every must be at least 1, got 0"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_workers(_build, 3, options)


def _build(rank: int, num_workers: int, options: dict[str, int]) -> None:
    build(DATA, schedules.sync(), ADAGRAD, **options).close()


def _fail(rank: int, num_workers: int) -> str:
    pipeline = NestPipe(
        Breaking("raise"),
        sparse_optimizer=ADAGRAD,
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        schedule=NAMED["nestpipe"],
        timeout=timedelta(seconds=5),
        replicas=2,
    )
    try:
        step_until_stop(pipeline, Data().batches(rank, num_workers, 20))
    except Exception as error:
        return f"{error} {getattr(error, '__notes__', '')}"
    finally:
        pipeline.close()
    return "nothing"


def test_an_exception_in_one_group_ends_all() -> None:
    messages = run_workers(_fail, 4)
    assert messages[1].startswith("loss is not finite")
    assert all(f"on rank {rank}" in message for rank, message in enumerate(messages))
