"""Evaluation between steps of training: a plain forward of the gathered state, unnoticed by training."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from nestpipe import NestPipe, RowWiseAdagrad, schedules
from nestpipe.schedule import Schedule
from tests.distributed import run_workers
from tests.nestpipe.models import Batch, Data, Model
from tests.nestpipe.reference import plain_model
from tests.nestpipe.training import State, build, difference, step_until_stop, weights

DATA = Data(dtype=torch.float64)
OPTIMIZER = RowWiseAdagrad(lr=0.05)
SCHEDULES = [schedules.sync(), schedules.nestpipe(3), schedules.uniemb()]
NUM_STEPS = 7
FIRST_HELD_OUT = 100
Evaluated = list[tuple[float, torch.Tensor]]


def held_out(rank: int, num_workers: int, num_batches: int) -> list[Batch]:
    return list(DATA.batches(rank, num_workers, num_batches, FIRST_HELD_OUT))


def evaluated(pipeline: NestPipe, batches: list[Batch]) -> Evaluated:
    results = []
    for index, (batch, loss, output) in enumerate(pipeline.evaluate(iter(batches))):
        assert batch is batches[index]
        assert torch.is_grad_enabled()
        assert not loss.requires_grad
        assert not output.requires_grad
        results.append((loss.item(), output))
    return results


def plain_forward(state: State, batches: list[Batch]) -> Evaluated:
    model = plain_model(DATA.dtype)
    model.load_state_dict(weights(state))
    with torch.no_grad():
        return [(loss.item(), output) for loss, output in map(model, batches)]


class WithDropout(Model):
    """Drops out in training, but never in a part that is frozen in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp.insert(2, nn.Dropout(0.5))
        self.frozen = nn.Dropout(0.5).eval()

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        loss, predicted = super().forward(batch)
        return loss, self.frozen(predicted)


def with_dropout(schedule: Schedule) -> NestPipe:
    return NestPipe(
        WithDropout().to(DATA.dtype),
        sparse_optimizer=OPTIMIZER,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        schedule=schedule,
    )


def _train_and_evaluate(
    rank: int, num_workers: int, schedule: Schedule, evaluates: bool
) -> tuple[State, Evaluated, State]:
    """The state after 3 steps, what was evaluated then (a worker w has 2w batches), the final state."""
    torch.manual_seed(rank)
    early, results = {}, []
    with with_dropout(schedule) as pipeline:
        batches = DATA.batches(rank, num_workers, NUM_STEPS)
        for _ in range(3):
            pipeline.progress(batches)
        if evaluates:
            results = evaluated(pipeline, held_out(rank, num_workers, 2 * rank))
            early = pipeline.state_dict()
        assert [n for n, m in pipeline.model.named_modules() if not m.training] == ["frozen"]
        assert len(step_until_stop(pipeline, batches)) == NUM_STEPS - 3
        return early, results, pipeline.state_dict()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_evaluation_is_a_forward_of_the_state_and_leaves_training_bitwise_alone(schedule: Schedule) -> None:
    with_it = run_workers(_train_and_evaluate, 3, schedule, True)
    without = run_workers(_train_and_evaluate, 3, schedule, False)
    for name, tensor in without[0][2].items():
        assert torch.equal(with_it[0][2][name], tensor), name
    early = with_it[0][0]
    assert difference(weights(early), weights(with_it[0][2])) > 1e-3
    renamed = {name.replace("mlp.3", "mlp.2"): tensor for name, tensor in early.items()}
    for rank, (_, results, _) in enumerate(with_it):
        expected = plain_forward(renamed, held_out(rank, 3, 2 * rank))
        assert len(results) == len(expected) == 2 * rank
        for (loss, output), (their_loss, their_output) in zip(results, expected, strict=True):
            assert loss == pytest.approx(their_loss, rel=1e-12)
            torch.testing.assert_close(output, their_output, rtol=1e-12, atol=1e-12)


def _stop_early(rank: int, num_workers: int) -> tuple[int, bool, int]:
    with build(DATA, schedules.nestpipe(2), OPTIMIZER) as pipeline:
        batches = DATA.batches(rank, num_workers, 4)
        pipeline.progress(batches)
        num_evaluated = 0
        # Worker 0 leaves after one of its 3 batches; worker 1, which has 5, is answered to the end.
        for _ in islice(
            pipeline.evaluate(iter(held_out(rank, num_workers, 3 + 2 * rank))), 1 if rank == 0 else 9
        ):
            num_evaluated += 1
        return num_evaluated, pipeline.model.training, len(step_until_stop(pipeline, batches))


def test_a_worker_that_stops_early_answers_the_others() -> None:
    assert run_workers(_stop_early, 2) == [(1, True, 3), (5, True, 3)]


class FailingInEvaluation(Model):
    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.training and torch.distributed.get_rank() == 1:
            raise FloatingPointError("loss is not finite")
        return super().forward(batch)


def _fail(rank: int, num_workers: int, kind: str) -> tuple[type, str, int]:
    """Worker 1 fails on its first batch; worker 0 has 3."""
    held = held_out(rank, num_workers, 3)
    if rank == 1 and kind == "id":
        held[0].sparse_features.values()[0] = 53

    def generate() -> Iterator[Batch]:
        if rank == 1 and kind == "iterator":
            raise OSError("disk gone")
        yield from held

    model = FailingInEvaluation() if kind == "model" else Model()
    with NestPipe(
        model.to(DATA.dtype),
        sparse_optimizer=OPTIMIZER,
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        schedule=schedules.nestpipe(2),
    ) as pipeline:
        batches = DATA.batches(rank, num_workers, 3)
        pipeline.progress(batches)
        caught: Exception | None = None
        try:
            list(pipeline.evaluate(generate()))
        except Exception as error:
            caught = error
        return type(caught), str(caught), len(step_until_stop(pipeline, batches))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("id", ValueError, "rank 1: feature 'clicked' has id 53, but table 'item' has 53 rows"),
        ("iterator", OSError, "disk gone"),
        ("model", FloatingPointError, "loss is not finite"),
    ],
)
def test_an_error_ends_every_workers_evaluation_and_training_goes_on(
    kind: str, error: type[Exception], message: str
) -> None:
    first, second = run_workers(_fail, 2, kind)
    assert first[0] is ValueError
    assert first[1].startswith(f"stopped because rank 1 could not go on: {error.__name__}: {message}")
    assert second[0] is error
    assert second[1].startswith(message)
    assert first[2] == second[2] == 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(mode: type) -> None:
    made_before = held_out(0, 1, 2)
    with build(DATA, schedules.nestpipe(2), OPTIMIZER) as pipeline:
        with mode():
            made_inside = held_out(0, 1, 2)
            inside = [evaluated_in(pipeline, made, mode()) for made in (made_before, made_inside)]
        outside = evaluated_in(pipeline, made_before, nullcontext())
        assert inside == [outside, outside]
        assert len(step_until_stop(pipeline, DATA.batches(0, 1, 2))) == 2


def evaluated_in(
    pipeline: NestPipe, batches: list[Batch], mode: AbstractContextManager[object]
) -> list[float]:
    with mode:
        return [loss.item() for _, loss, _ in pipeline.evaluate(iter(batches))]


class Tier:
    """Takes note of accesses; a write ends late, unless the caller's thread reads while it lasts."""

    def __init__(self) -> None:
        self.rows_read = 0
        self.ended: list[str] = []
        self._is_read_by_caller = threading.Event()

    @contextmanager
    def access(self, kind: str, num_rows: int, num_bytes: int) -> Iterator[None]:
        yield
        if kind == "write":
            self._is_read_by_caller.wait(timeout=0.2)
        elif threading.current_thread() is threading.main_thread():
            self.rows_read += num_rows
            self._is_read_by_caller.set()
        self.ended.append(kind)


def test_evaluation_waits_for_writes_and_is_charged_for_what_it_reads() -> None:
    tier = Tier()
    (batch,) = held_out(0, 1, 1)
    with build(DATA, schedules.sync(), OPTIMIZER, host_tier=tier) as pipeline:
        pipeline.progress(DATA.batches(0, 1, 1))
        tier.ended.clear()
        list(pipeline.evaluate(iter([batch])))
    assert tier.ended == ["write"] * 2 + ["read"] * 2  # rows of 8 and of 4 elements
    keys = {name: set(jagged.values().tolist()) for name, jagged in batch.sparse_features.to_dict().items()}
    shared = [keys["clicked"] | keys["bought"], keys["tags"] | keys["more_tags"], keys["clicked"]]
    assert tier.rows_read == sum(map(len, (*shared, keys["user"], keys["words"])))


def test_an_evaluation_left_open_ends_with_the_pipeline() -> None:
    with build(DATA, schedules.sync(), OPTIMIZER) as pipeline:
        left_open = pipeline.evaluate(iter(held_out(0, 1, 3)))
        next(left_open)
    with pytest.raises(RuntimeError, match="closed"):
        next(left_open)
    assert isinstance(left_open, Generator)
    left_open.close()
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.evaluate(iter([]))


def _rows(
    rank: int, num_workers: int, replicas: int
) -> tuple[dict[str, list[tuple[torch.Tensor, torch.Tensor]]], State]:
    with build(DATA, schedules.nestpipe(2), OPTIMIZER, replicas=replicas, sync_every=2) as pipeline:
        batches = DATA.batches(rank, num_workers, 5)
        for _ in range(3):
            pipeline.progress(batches)
        rows = {name: list(pipeline.rows_of(name, chunk_rows=5)) for name in ("item", "mean_item", "user")}
        state = pipeline.state_dict()
        step_until_stop(pipeline, batches)
        return rows, state


@pytest.mark.parametrize(("num_workers", "replicas"), [(1, 1), (3, 1), (4, 2)])
def test_rows_of_a_table_are_at_one_worker_each(num_workers: int, replicas: int) -> None:
    results = run_workers(_rows, num_workers, replicas)
    state = results[0][1]
    for name, parameter in {
        "item": "ec.embeddings.item.weight",
        "mean_item": "ebc.embedding_bags.mean_item.weight",
        "user": "ec.embeddings.user.weight",
    }.items():
        chunks = [chunk for rows, _ in results for chunk in rows[name]]
        ids = torch.cat([ids for ids, _ in chunks])
        assert max(len(ids) for ids, _ in chunks) <= 5
        assert ids.dtype is torch.int64
        assert ids.sort().values.tolist() == list(range(len(state[parameter])))
        assert torch.equal(torch.cat([rows for _, rows in chunks]), state[parameter][ids])
    if replicas == 2:
        assert all(not chunks for rank in (1, 3) for chunks in results[rank][0].values())


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = EmbeddingConfig(name="item", num_embeddings=6, embedding_dim=4, feature_names=["item"])
        self.a, self.b = (EmbeddingCollection(tables=[config]) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(1))


def test_tables_that_are_unknown_or_ambiguous_are_named() -> None:
    with build(DATA, schedules.sync(), OPTIMIZER) as pipeline:
        with pytest.raises(ValueError, match="no table 'items'; did you mean 'item'"):
            pipeline.rows_of("items")
        with pytest.raises(ValueError, match="chunk_rows must be at least 1, got 0"):
            pipeline.rows_of("item", chunk_rows=0)
    with NestPipe(
        Twice(), sparse_optimizer=OPTIMIZER, dense_optimizer=lambda p: torch.optim.SGD(p, lr=0.1)
    ) as pipeline:
        with pytest.raises(
            ValueError, match=r"2 tables are named 'item'; ask for .* 'b\.embeddings\.item\.weight'"
        ):
            pipeline.rows_of("item")
        assert [len(ids) for ids, _ in pipeline.rows_of("b.embeddings.item.weight")] == [6]
