"""Learning-rate factors, clipping and weight decay: every schedule against plain torch, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch

from nestpipe import NestPipe, lr, schedules
from nestpipe.clipping import GradientClipping, scale
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer
from tests.distributed import run_workers
from tests.nestpipe.models import Batch, Data, Model
from tests.nestpipe.reference import Rules
from tests.nestpipe.reference import train as reference
from tests.nestpipe.training import DENSE_LR, State, build, difference, step_until_stop, weights
from workloads.models.dropout import seeded_dropout

NUM_STEPS = 6
DATA = Data(dtype=torch.float64)
SCHEDULES = {
    "sync": schedules.sync(),
    "dbp": schedules.dbp(),
    "nestpipe": schedules.nestpipe(4),
    "uniemb": schedules.uniemb(),
}


class SeededDropout(Model):
    """Drops predictions out by a mask that is a function of the sample alone."""

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        _, predicted = super().forward(batch)
        seeds = batch.labels.double().view(torch.int64)
        kept = seeded_dropout(predicted.unsqueeze(1), seeds, torch.zeros_like(seeds), 0, 0.4).squeeze(1)
        return ((kept - batch.labels) ** 2).mean(), kept


def constant_rates(clipping: GradientClipping | None = None) -> Rules:
    """Constant learning rates, as objects that can be sent to workers."""
    return Rules(lr.Constant(), lr.Constant(), clipping)


@dataclass(frozen=True)
class Case:
    optimizer: SparseOptimizer
    rules: Rules = field(default_factory=constant_rates)
    kind: type[Model] = Model
    schedules: tuple[str, ...] = ("sync", "dbp", "nestpipe")

    def options(self) -> dict[str, Any]:
        return {
            name: getattr(self.rules, name) for name in ("sparse_lr_factor", "dense_lr_factor", "clipping")
        }


ALL = tuple(SCHEDULES)
# The norms of these runs lie on both sides of the limits.
CASES = {
    "lr": Case(RowWiseAdagrad(0.05), Rules(lr.WarmupCosine(3, 7), lr.StepDecay(2, 0.5, warmup_steps=2))),
    "clip dense": Case(SGD(0.3), constant_rates(GradientClipping(0.6))),
    "clip all": Case(SGD(0.3), constant_rates(GradientClipping(0.6, "all")), schedules=ALL),
    "decay SGD": Case(SGD(0.3, weight_decay=0.2)),
    "decay RowWiseAdagrad": Case(RowWiseAdagrad(0.05, weight_decay=0.2)),
    "decay Adagrad": Case(Adagrad(0.05, weight_decay=0.2)),
    "decay Adam": Case(Adam(0.01, weight_decay=0.2)),
    "dropout": Case(RowWiseAdagrad(0.05), kind=SeededDropout),
    "everything": Case(
        Adagrad(0.05, weight_decay=0.2),
        Rules(lr.WarmupLinear(2, 9, final=0.1), lr.WarmupCosine(1, 9), GradientClipping(0.6, "all")),
        SeededDropout,
        ALL,
    ),
}


def pipeline_of(case: Case, schedule: str, **options: Any) -> NestPipe:
    return NestPipe(
        case.kind().to(DATA.dtype),
        sparse_optimizer=case.optimizer,
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
        schedule=SCHEDULES[schedule],
        **case.options(),
        **options,
    )


def _train(
    rank: int, num_workers: int, cases: dict[str, Case], options: dict[str, Any]
) -> dict[tuple[str, str], State]:
    results = {}
    for name, case in cases.items():
        for schedule in case.schedules:
            with pipeline_of(case, schedule, **options) as pipeline:
                assert len(step_until_stop(pipeline, DATA.batches(rank, num_workers, NUM_STEPS))) == NUM_STEPS
                results[name, schedule] = weights(pipeline.state_dict())
    return results


@cache
def expected(case: Case, num_workers: int, **options: Any) -> State:
    return reference(
        DATA, case.optimizer, num_workers, NUM_STEPS, rules=case.rules, kind=case.kind, **options
    )


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_schedule_computes_the_reference(num_workers: int) -> None:
    results = run_workers(_train, num_workers, CASES, {})[0]
    for name, case in CASES.items():
        fresh = expected(case, num_workers)
        for schedule in ("sync", "nestpipe"):
            assert difference(results[name, schedule], fresh) < 1e-12, (name, schedule)
        for parameter, tensor in results[name, "sync"].items():
            assert torch.equal(results[name, "dbp"][parameter], tensor), (name, parameter)
        if "uniemb" in case.schedules:
            stale = expected(case, num_workers, staleness=1)
            assert difference(results[name, "uniemb"], stale) < 1e-12, name


def test_no_case_is_one_that_changes_nothing() -> None:
    for name, case in CASES.items():
        plain = Case(replace(case.optimizer, weight_decay=0.0))  # type: ignore[type-var]
        assert difference(expected(case, 1), expected(plain, 1)) > 1e-3, name


def test_replicas_clip_by_a_norm_that_all_workers_share() -> None:
    cases = {"clip all": replace(CASES["clip all"], schedules=("nestpipe",))}
    result = run_workers(_train, 4, cases, {"replicas": 2})[0]["clip all", "nestpipe"]
    averaged = range(1, NUM_STEPS + 1)
    assert difference(result, expected(CASES["clip all"], 4, num_groups=2, sync_after=averaged)) < 1e-12


def _resume(rank: int, num_workers: int) -> State:
    """Three steps, then the state in another pipeline for the rest."""
    case = CASES["everything"]
    with pipeline_of(case, "nestpipe") as first:
        step_until_stop(first, DATA.batches(rank, num_workers, 3))
        state = first.state_dict()
    with pipeline_of(case, "dbp") as second:
        second.load_state_dict(state)
        step_until_stop(second, DATA.batches(rank, num_workers, NUM_STEPS - 3, first_step=3))
        return weights(second.state_dict())


def test_a_loaded_state_keeps_its_place_in_the_schedules() -> None:
    assert difference(run_workers(_resume, 2)[0], expected(CASES["everything"], 2)) < 1e-12


def test_a_scheduler_of_the_users_own_works_beside_the_factor() -> None:
    def halved(step: int) -> float:
        return 0.5**step

    case = CASES["lr"]
    with pipeline_of(case, "nestpipe") as pipeline:
        scheduler = torch.optim.lr_scheduler.LambdaLR(pipeline.dense_optimizer, halved)
        batches = DATA.batches(0, 1, NUM_STEPS)
        for step in range(NUM_STEPS):
            assert pipeline.dense_optimizer.param_groups[0]["lr"] == DENSE_LR * halved(step)
            pipeline.progress(batches)
            scheduler.step()
        result = weights(pipeline.state_dict())
    both = replace(case.rules, dense_lr_factor=lambda t: case.rules.dense_lr_factor(t) * halved(t))
    assert difference(result, expected(replace(case, rules=both), 1)) < 1e-12


@pytest.mark.parametrize("factor", [-0.5, float("nan")])
def test_a_factor_that_no_rate_can_have_is_named(factor: float) -> None:
    with build(DATA, schedules.sync(), SGD(0.1), sparse_lr_factor=lambda step: factor) as pipeline:
        with pytest.raises(ValueError, match=f"finite and >= 0, but .* is {factor} at step 0") as caught:
            pipeline.progress(DATA.batches(0, 1, 2))
        assert any("update(0)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientClipping(0.0), "max_norm must be > 0, got 0.0"),
        (lambda: GradientClipping(0.6, "rows"), 'scope must be "dense" or "all"'),  # type: ignore[arg-type]
        (lambda: SGD(0.1, weight_decay=-1.0), r"weight_decay must be >= 0\.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_progress_without_gradients_says_so() -> None:
    with build(DATA, schedules.sync(), SGD(0.1)) as pipeline:
        batches = DATA.batches(0, 1, 2)
        with torch.no_grad(), pytest.raises(RuntimeError, match="call it outside no_grad, or use evaluate"):
            pipeline.progress(batches)
        assert len(step_until_stop(pipeline, batches)) == 2


@pytest.mark.parametrize("max_norm", [0.5, 3.0, 100.0])
def test_the_factor_is_torchs(max_norm: float) -> None:
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        gradient = torch.randn(31, dtype=torch.float64, generator=generator)
        parameter = torch.zeros(31, dtype=torch.float64, requires_grad=True)
        parameter.grad = gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_([parameter], max_norm)
        scale(gradient, GradientClipping(max_norm).factor(norm))
        assert torch.equal(gradient, parameter.grad)


def test_a_norm_that_is_not_a_number_shows_in_the_gradients() -> None:
    """As with torch.nn.utils.clip_grad_norm_: no step passes for a clipped one."""
    gradients = torch.ones(3)
    scale(gradients, GradientClipping(1.0).factor(torch.tensor(float("nan"), dtype=torch.float64)))
    assert gradients.isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_gradients_are_rounded_once(dtype: torch.dtype) -> None:
    gradients = torch.linspace(-3.0, 3.0, 101).to(dtype)
    factor = torch.tensor(0.123456789, dtype=torch.float64)
    expected = (gradients.float() * factor.float()).to(dtype)
    assert not torch.equal(expected, gradients * factor.to(dtype))
    scale(gradients, factor)
    assert torch.equal(gradients, expected)
