"""Learning rates by step, clipping and weight decay: TorchRec against the reference and the engine."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from baselines import registry
from baselines.interface import Setup
from nestpipe.clipping import GradientClipping
from nestpipe.optim import SGD, Adagrad, RowWiseAdagrad, SparseOptimizer
from tests.baselines import reference, training
from tests.baselines.models import Case
from tests.baselines.training import DENSE_LR, State
from tests.distributed import run_workers

NUM_STEPS = 20
MAX_NORM = 0.2
CASE = Case("sequence")
OPTIMIZER = RowWiseAdagrad(0.1, eps=1e-4, weight_decay=0.05)


def warm_up(step: int) -> float:
    return min(1.0, (step + 1) / 7)


def halve(step: int) -> float:
    return 0.5 ** (step // 4)


UPDATES = reference.Updates(dense_lr_factor=halve, sparse_lr_factor=warm_up, max_norm=MAX_NORM)


def setup(case: Case, optimizer: SparseOptimizer) -> Setup:
    return Setup(
        model=case.model(),
        sparse_optimizer=optimizer,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
        dense_lr_factor=halve,
        sparse_lr_factor=warm_up,
        clipping=GradientClipping(MAX_NORM),
    )


def _train(rank: int, num_workers: int, names: list[str], case: Case, optimizer: SparseOptimizer) -> Any:
    states = []
    for name in names:
        runner = registry.get(name).build(setup(case, optimizer))
        batches = iter([case.batch(step, rank) for step in range(NUM_STEPS)])
        for _ in range(NUM_STEPS):
            runner.progress(batches)
        states.append(runner.state_dict())
        runner.close()
    return states


def distance(state: State, expected: State) -> float:
    """Largest difference of any parameter, by the largest weight."""
    assert state.keys() == expected.keys()
    return max(
        ((state[name].double() - expected[name].double()).abs().max() / expected[name].abs().max()).item()
        for name in expected
    )


def test_all_at_once_as_in_the_reference_and_the_engine() -> None:
    expected, _ = reference.train(CASE, OPTIMIZER, DENSE_LR, NUM_STEPS, 2, updates=UPDATES)
    names = ["torchrec", "torchrec-sparse-dist", "sync"]
    base, sparse_dist, sync = run_workers(_train, 2, names, CASE, OPTIMIZER)[0]
    assert distance(base, expected) < 1e-5
    assert distance(sparse_dist, base) == 0.0
    assert distance(sync, base) < 1e-5


def test_each_of_them_matters() -> None:
    def train(optimizer: SparseOptimizer = OPTIMIZER, **changed: Any) -> State:
        updates = reference.Updates(**{**vars(UPDATES), **changed})
        return reference.train(CASE, optimizer, DENSE_LR, 6, 1, updates=updates)[0]

    expected = train()
    assert distance(train(dense_lr_factor=reference.constant), expected) > 1e-3
    assert distance(train(sparse_lr_factor=reference.constant), expected) > 1e-3
    assert distance(train(max_norm=1e9), expected) > 1e-3
    assert distance(train(RowWiseAdagrad(0.1, eps=1e-4)), expected) > 1e-3


def test_2d_and_pooled_rates_and_clipping() -> None:
    case, optimizer = Case("pooled"), SGD(0.5)
    expected, _ = reference.train(case, optimizer, DENSE_LR, NUM_STEPS, 2, num_groups=2, updates=UPDATES)
    (two_d,) = run_workers(_train, 2, ["2d-sp"], case, optimizer)[0]
    assert distance(two_d, expected) < 1e-5


def _autocast(
    rank: int, num_workers: int, runs: list[tuple[str, bool, bool]]
) -> list[tuple[State, list[float]]]:
    """By run, a method's name, whether autocast is on, and whether each step enters it anew."""
    case = Case("pooled")
    results = []
    for name, is_on, is_anew in runs:
        runner = training.build(name, case, SGD(0.1))
        batches = iter([case.batch(step, rank) for step in range(4)])
        losses = []
        with _bfloat16(is_on and not is_anew):
            for _ in range(4):
                with _bfloat16(True) if is_anew else nullcontext():
                    ((_, evaluated_loss, evaluated),) = runner.evaluate(iter([case.batch(9, rank)]))
                    loss, output = runner.progress(batches)
                losses += [evaluated_loss.item(), loss.item()]
                assert evaluated.dtype == output.dtype == (torch.bfloat16 if is_on else torch.float32)
        results.append((runner.state_dict(), losses))
    return results


def _bfloat16(is_on: bool) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=is_on)


def test_trains_and_evaluates_under_bfloat16_autocast() -> None:
    runs = [
        ("torchrec", False, False),
        ("torchrec", True, False),
        ("torchrec", True, True),
        ("torchrec-sparse-dist", True, False),
    ]
    (exact, whole, each, sparse_dist), _ = run_workers(_autocast, 2, runs)
    assert whole[1] != exact[1]
    # A few products of eight bits' precision, of values of about one.
    assert whole[1] == pytest.approx(exact[1], abs=2**-5)
    # Autocast keeps weights in bfloat16 until its end, which must not make them old.
    assert whole[1] == each[1] == sparse_dist[1]
    assert distance(whole[0], each[0]) == distance(whole[0], sparse_dist[0]) == 0.0


def _build(rank: int, num_workers: int, case: Case, optimizer: SparseOptimizer, scope: Any) -> None:
    training.build("torchrec", case, optimizer, clipping=GradientClipping(1.0, scope=scope))


@pytest.mark.parametrize(
    ("case", "optimizer", "scope", "message"),
    [
        ("sequence", SGD(0.1), "all", "before all gradients are known: clipping with scope='all'"),
        ("pooled", RowWiseAdagrad(0.1, weight_decay=0.1), "dense", "EmbeddingBagCollection ignores weight"),
        ("sequence", SGD(0.1, weight_decay=0.1), "dense", "fused SGD has no weight decay"),
        ("sequence", Adagrad(0.1, weight_decay=0.1), "dense", "fused Adagrad has no weight decay"),
    ],
)
def test_what_a_fused_update_cannot_do_is_an_error(
    case: str, optimizer: SparseOptimizer, scope: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _build(0, 1, Case(case), optimizer, scope)
