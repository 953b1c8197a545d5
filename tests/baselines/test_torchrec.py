"""TorchRec's methods against a reference that shares no code with them, and against each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baselines.torchrec_state import _local_shards, sharded_modules
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer
from tests.baselines import reference, training
from tests.baselines.models import Case
from tests.baselines.training import DENSE_LR, State
from tests.distributed import run_workers

NUM_STEPS = 12
CASES = [Case("sequence"), Case("pooled"), Case("weighted")]
OPTIMIZERS: list[SparseOptimizer] = [SGD(0.5), RowWiseAdagrad(0.1, eps=1e-4), Adagrad(0.1, eps=1e-4)]
PIPELINES = ["torchrec", "torchrec-nodedup", "torchrec-sparse-dist"]


def distance(state: State, expected: State) -> float:
    """Largest difference of any parameter, by the largest weight."""
    assert state.keys() == expected.keys()
    return max(
        ((state[name].double() - expected[name].double()).abs().max() / expected[name].abs().max()).item()
        for name in expected
    )


def run(name: str, case: Case, optimizer: SparseOptimizer, num_workers: int, **options: Any) -> Any:
    return run_workers(training.train, num_workers, name, case, optimizer, NUM_STEPS, options)


def assert_matches(results: Any, expected: State, losses: list[list[float]]) -> None:
    assert distance(results[0][0], expected) < 1e-5
    for rank, (state, own_losses) in enumerate(results):
        assert bool(state) == (rank == 0)
        assert own_losses == pytest.approx([step[rank] for step in losses], rel=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_matches_the_reference(case: Case, optimizer: SparseOptimizer) -> None:
    expected, losses = reference.train(case, optimizer, DENSE_LR, NUM_STEPS, num_workers=2)
    assert distance(dict(case.model().named_parameters()), expected) > 0.05, "too little was learnt"
    assert_matches(run("torchrec", case, optimizer, 2), expected, losses)


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_matches_the_reference_with_other_numbers_of_workers(case: Case, num_workers: int) -> None:
    optimizer = RowWiseAdagrad(0.1)
    expected, losses = reference.train(case, optimizer, DENSE_LR, NUM_STEPS, num_workers)
    assert_matches(run("torchrec", case, optimizer, num_workers), expected, losses)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pipelines_and_dedup_agree(case: Case) -> None:
    base, nodedup, sparse_dist = (run(name, case, RowWiseAdagrad(0.1), 2) for name in PIPELINES)
    assert distance(sparse_dist[0][0], base[0][0]) == 0.0
    assert [losses for _, losses in sparse_dist] == [losses for _, losses in base]
    assert distance(nodedup[0][0], base[0][0]) < 1e-6


def _initial_state(rank: int, num_workers: int, name: str, case: Case) -> State:
    return training.build(name, case, SGD(0.1)).state_dict()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", [*PIPELINES, "2d-sp"])
def test_starts_from_the_given_weights_under_their_names(name: str, case: Case) -> None:
    state, other = run_workers(_initial_state, 2, name, case)
    expected = dict(case.model().named_parameters())
    assert other == {}
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("optimizer", [SGD(0.5), RowWiseAdagrad(0.1)], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_2d_matches_the_reference(case: Case, optimizer: SparseOptimizer) -> None:
    expected, losses = reference.train(case, optimizer, DENSE_LR, NUM_STEPS, num_workers=2, num_groups=2)
    assert_matches(run("2d-sp", case, optimizer, 2), expected, losses)


def test_2d_matches_the_reference_with_groups_of_two() -> None:
    case, optimizer = Case("sequence"), RowWiseAdagrad(0.1)
    expected, losses = reference.train(case, optimizer, DENSE_LR, NUM_STEPS, num_workers=4, num_groups=2)
    assert_matches(run("2d-sp", case, optimizer, 4, replicas=2), expected, losses)


@pytest.mark.parametrize(("num_workers", "options"), [(1, {}), (2, {"replicas": 1})])
def test_2d_without_replicas_is_torchrec(num_workers: int, options: dict[str, int]) -> None:
    case, optimizer = Case("sequence"), RowWiseAdagrad(0.1)
    base = run("torchrec", case, optimizer, num_workers)
    assert distance(run("2d-sp", case, optimizer, num_workers, **options)[0][0], base[0][0]) == 0.0


def _replicas(rank: int, num_workers: int, num_steps: int) -> tuple[str, State]:
    case = Case("sequence")
    runner = training.build("2d-sp", case, RowWiseAdagrad(0.1), {"replicas": 2, "sync_every": 3})
    training.step_until_stop(runner, case, rank, num_steps)
    modules = sharded_modules(runner._model).values()
    return runner.note, {n: w.clone() for module in modules for n, _, w in _local_shards(module)}


def test_replicas_meet_when_they_are_averaged() -> None:
    (note, first), (_, second) = run_workers(_replicas, 2, 6)
    assert note == "2 groups of 1, averaged every 3 steps"
    assert first.keys() == {"item", "user", "word"}
    assert all(torch.equal(first[name], second[name]) for name in first)
    (_, first), (_, second) = run_workers(_replicas, 2, 5)
    assert distance(first, second) > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "3 workers cannot be split into replicas=2"),
        ({"replicas": 0}, "replicas must be a whole number of at least 1, got 0"),
        ({"replicas": 3, "sync_every": 0}, "sync_every must be a whole number"),
    ],
)
def test_2d_names_what_is_wrong(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run("2d-sp", Case("sequence"), SGD(0.1), 3, **options)


def test_an_optimizer_that_fbgemm_lacks_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no Adam: use SGD, RowWiseAdagrad or Adagrad"):
        run("torchrec", Case("sequence"), Adam(0.1), 1)


def _double(rank: int, num_workers: int) -> None:
    from baselines import registry
    from baselines.interface import Setup

    setup = Setup(Case("pooled").model().double(), SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1))
    registry.get("torchrec").build(setup)


def test_tables_in_float64_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"float32 or float16 tables, bags\.embedding_bags\.bag\.weight"):
        run_workers(_double, 1)


def _on_cuda(rank: int, num_workers: int, name: str) -> None:
    from baselines import registry
    from baselines.interface import Setup

    model, cuda = Case("pooled").model(), torch.device("cuda")
    registry.get(name).build(Setup(model, SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1), cuda))


@pytest.mark.skipif(torch.cuda.is_available(), reason="FBGEMM's CUDA build may be here")
@pytest.mark.parametrize("name", [*PIPELINES, "2d-sp"])
def test_a_device_that_fbgemm_is_not_built_for_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="TorchRec cannot run on cuda: the FBGEMM installed here has no"):
        run_workers(_on_cuda, 1, name)


@pytest.mark.parametrize("name", ["torchrec-sparse-dist"])
def test_a_second_epoch_goes_on(name: str) -> None:
    assert run_workers(_two_epochs, 2, name) == [(3, 3)] * 2


def _two_epochs(rank: int, num_workers: int, name: str) -> tuple[int, int]:
    case = Case("sequence")
    runner = training.build(name, case, SGD(0.1))
    return (
        len(training.step_until_stop(runner, case, rank, 3)),
        len(training.step_until_stop(runner, case, rank, 3)),
    )
