"""Evaluation of TorchRec's methods: against one process, and without a trace in training."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from baselines import registry, torchrec_state
from baselines.interface import Runner, Setup
from baselines.torchrec_hooks import Point
from baselines.torchrec_runner import TorchRecRunner
from baselines.torchrec_state import kernels, sharded_modules
from nestpipe.optim import SGD, RowWiseAdagrad
from tests.baselines import reference, training
from tests.baselines.models import NUM_ROWS, Case
from tests.baselines.training import State
from tests.distributed import run_workers
from workloads.interface import SequenceBatch

NUM_STEPS = 6
FIRST_HELD_OUT = 100
"""Steps from here on are held out of training."""


class Noisy(nn.Module):
    """A model whose prediction is dropped in training, and only there."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.drop = nn.Dropout(0.5)

    def forward(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        predicted = self.drop(self.inner(batch)[1])
        return ((predicted - batch.labels) ** 2).mean(), predicted


@dataclass(frozen=True)
class NoisyCase(Case):
    def model(self, seed: int = 7) -> nn.Module:
        return Noisy(super().model(seed))


class Count:
    """Counts how often points are entered."""

    def __init__(self) -> None:
        self.entered: Counter[Point] = Counter()

    def enter(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        self.entered[point] += 1

    def leave(self, point: Point, features: KeyedJaggedTensor | None) -> None:
        pass


@dataclass
class Outcome:
    """What a worker saw: its training, and each evaluation as state, place, loss and output."""

    losses: list[float] = field(default_factory=list)
    state: State = field(default_factory=dict)
    points: Counter[Point] = field(default_factory=Counter)
    counters: list[int] = field(default_factory=list)
    num_timed: int = 0
    evaluations: list[tuple[State, list[tuple[int, float, torch.Tensor]]]] = field(default_factory=list)


def held_out(case: Case, rank: int, num_batches: int) -> list[SequenceBatch]:
    return [case.batch(FIRST_HELD_OUT + place, rank, num_samples=3 + place) for place in range(num_batches)]


def evaluated(
    runner: Runner, batches: list[SequenceBatch], last: int | None
) -> list[tuple[int, float, torch.Tensor]]:
    """Place, loss and output of each batch, up to place `last`, where the caller leaves."""
    found = []
    results = runner.evaluate(iter(batches))
    for place, (batch, loss, output) in enumerate(results):
        assert batch is batches[place]
        assert not loss.requires_grad
        found.append((place, loss.item(), output))
        if place == last:
            results.close()  # type: ignore[attr-defined]
    return found


def _train(rank: int, num_workers: int, name: str, case: Case, evaluates: bool) -> Outcome:
    torch.manual_seed(rank)
    outcome, count = Outcome(), Count()
    runner = training.build(name, case, RowWiseAdagrad(0.1))
    runner.observe(count)
    batches = iter([case.batch(step, rank) for step in range(NUM_STEPS)])
    # By step: numbers of batches on each worker, and where each leaves. Before the first step no batch
    # has ever been looked up, in the midst of training a pipeline holds batches, in the end none.
    plans = {0: ((3, 0), (None, None)), 3: ((1, 4), (None, None)), NUM_STEPS: ((3, 3), (0, None))}
    for step in range(NUM_STEPS + 1):
        if evaluates and step in plans:
            (nums, lasts) = plans[step]
            found = evaluated(runner, held_out(case, rank, nums[rank]), lasts[rank])
            outcome.evaluations.append((runner.state_dict(), found))
        if step < NUM_STEPS:
            outcome.losses.append(runner.progress(batches)[0].item())
    outcome.state, outcome.points = runner.state_dict(), count.entered
    outcome.counters = [
        int(kernel.emb_module.iter) + int(kernel.emb_module.iter_cpu)
        for module in sharded_modules(runner._model).values()
        for kernel in kernels(module)
    ]
    outcome.num_timed = len(runner.step_times())
    return outcome


def _both(rank: int, num_workers: int, name: str, case: Case) -> tuple[Outcome, Outcome]:
    return tuple(_train(rank, num_workers, name, case, evaluates) for evaluates in (True, False))  # type: ignore[return-value]


def assert_as_on_one_process(case: Case, state: State, rank: int, found: list[Any]) -> None:
    model = reference.plain_model(Case(case.name))
    model.load_state_dict({name.removeprefix("inner."): value for name, value in state.items()})
    for place, loss, output in found:
        expected_loss, expected = model(case.batch(FIRST_HELD_OUT + place, rank, num_samples=3 + place))
        assert loss == pytest.approx(expected_loss.item(), rel=1e-5)
        torch.testing.assert_close(output.double(), expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("torchrec", "sequence"),
        ("torchrec-sparse-dist", "sequence"),
        ("torchrec-sparse-dist", "pooled"),
        ("2d-sp", "sequence"),
    ],
)
def test_evaluates_the_state_and_leaves_training_alone(name: str, case: str) -> None:
    noisy = NoisyCase(case)
    results = run_workers(_both, 2, name, noisy)
    for with_evaluation, without in results:
        assert with_evaluation.losses == without.losses
        assert with_evaluation.counters == without.counters
        assert with_evaluation.points == without.points
        assert with_evaluation.num_timed == without.num_timed == NUM_STEPS
    states = [outcome.state for outcome in results[0]]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])
    # Averaged every step, replicas are equal, so that 2D's gathered state is every worker's.
    for rank, nums in enumerate(((3, 1, 1), (0, 4, 3))):
        evaluations = results[rank][0].evaluations
        assert [len(found) for _, found in evaluations] == list(nums)
        for (state, _), (_, found) in zip(results[0][0].evaluations, evaluations, strict=True):
            assert_as_on_one_process(noisy, state, rank, found)


def _failing(case: Case) -> Iterator[SequenceBatch]:
    yield case.batch(0, 1)
    raise OSError("the disk is gone")


def _evaluate_failing(rank: int, num_workers: int) -> str:
    case = Case("pooled")
    runner = training.build("torchrec", case, SGD(0.1))
    batches = _failing(case) if rank == 1 else iter(held_out(case, rank, 4))
    with pytest.raises((OSError, RuntimeError)) as caught:
        list(runner.evaluate(batches))
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_batch_that_cannot_be_drawn_ends_every_worker() -> None:
    assert run_workers(_evaluate_failing, 2) == [
        "RuntimeError: evaluation stopped: rank 1 could not draw its batch",
        "OSError: the disk is gone",
    ]


def _other_keys(rank: int, num_workers: int) -> None:
    case = Case("sequence")
    runner = training.build("torchrec", case, SGD(0.1))
    runner.progress(iter([case.batch(0, rank)]))
    batch = case.batch(1, rank)
    features = batch.sparse_features.permute([1, 0, 2, 3])
    next(runner.evaluate(iter([replace(batch, sparse_features=features)])))


def test_a_batch_with_its_keys_in_another_order_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the first had \['clicked', 'bought', .*\['bought', 'clicked',"):
        run_workers(_other_keys, 1)


Rows = list[tuple[torch.Tensor, torch.Tensor]]


def _rows(rank: int, num_workers: int, name: str, case: Case) -> tuple[State, dict[str, Rows]]:
    torchrec_state._CHUNK_ROWS = 5
    runner: TorchRecRunner = training.build(name, case, SGD(0.5))
    training.step_until_stop(runner, case, rank, 3)
    state = runner.state_dict()
    rows = {parameter: list(runner.rows_of(parameter.split(".")[-2])) for parameter in _tables(case)}
    with pytest.raises(ValueError, match="no table is called 'itme': did you mean 'item'"):
        list(runner.rows_of("itme"))
    assert len(list(runner.rows_of("wide.embeddings.item.weight"))) == len(
        rows["wide.embeddings.item.weight"]
    )
    runner.close()
    return state, rows


def _tables(case: Case) -> list[str]:
    return [name for name, _ in case.model().named_parameters() if "embedding" in name]


@pytest.mark.parametrize(("name", "num_workers"), [("torchrec-sparse-dist", 3), ("2d-sp", 2)])
def test_each_row_is_at_one_worker(name: str, num_workers: int) -> None:
    case = Case("sequence")
    results = run_workers(_rows, num_workers, name, case)
    for table in _tables(case):
        chunks = [chunk for _, rows in results for chunk in rows[table]]
        assert all(0 < ids.numel() <= 5 for ids, _ in chunks)
        ids = torch.cat([ids for ids, _ in chunks])
        assert ids.dtype == torch.int64
        assert ids.tolist() == list(range(results[0][0][table].shape[0]))
        assert torch.equal(torch.cat([rows for _, rows in chunks]), results[0][0][table])
    if name == "2d-sp":
        assert not any(results[1][1].values())


def _slowly(batches: list[SequenceBatch]) -> Iterator[SequenceBatch]:
    for batch in batches:
        time.sleep(0.05)
        yield batch


def _timed(rank: int, num_workers: int, name: str) -> tuple[float, float, int]:
    case = Case("sequence")
    setup = Setup(case.model(), SGD(0.1), lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    runner = registry.get(name).build(setup)
    batches = iter([case.batch(step, rank) for step in range(6)])
    seconds = 0.0
    for _ in range(2):
        began = time.perf_counter()
        for _ in range(3):
            runner.progress(batches)
        seconds += time.perf_counter() - began
        assert len(list(runner.evaluate(_slowly(held_out(case, rank, 2))))) == 2
    times = runner.step_times()
    (ids,) = (ids for ids, _ in runner.rows_of("item"))
    assert ids.tolist() == list(range(NUM_ROWS["item"]))
    runner.close()
    return 1e3 * seconds, sum(step.step_ms for step in times), len(times)


@pytest.mark.parametrize("name", ["torchrec", "torchrec-sparse-dist", "nestpipe"])
def test_what_evaluation_takes_is_in_no_step(name: str) -> None:
    ((in_progress_ms, in_steps_ms, num_steps),) = run_workers(_timed, 1, name)
    assert num_steps == 6
    assert in_steps_ms <= in_progress_ms


class Silent(Runner):
    """A third party's runner from before there was evaluation."""

    def progress(self, batches: Iterator[Any]) -> Any:
        raise StopIteration

    def step_times(self) -> list[Any]:
        return []

    def state_dict(self) -> State:
        return {}


def test_a_method_need_not_evaluate() -> None:
    with pytest.raises(NotImplementedError, match="Silent cannot evaluate"):
        Silent().evaluate(iter(()))
    with pytest.raises(NotImplementedError, match="Silent has no rows to show"):
        Silent().rows_of("item")
