"""From settings to optimizers, learning rates, clipping and number formats."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from harness.options import Training, parse_settings
from harness.setup import autocast, clipping, dense_optimizer, lr_factor, make_setup, sparse_optimizer
from nestpipe.clipping import GradientClipping
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad
from tests.harness.fakes import FakeWorkload

CPU = torch.device("cpu")


def training(*pairs: str) -> Training:
    return parse_settings(pairs, []).training


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rowwise_adagrad", RowWiseAdagrad(0.5, weight_decay=0.25)),
        ("sgd", SGD(0.5, weight_decay=0.25)),
        ("adagrad", Adagrad(0.5, weight_decay=0.25)),
        ("adam", Adam(0.5, betas=(0.8, 0.98), weight_decay=0.25)),
    ],
)
def test_sparse_optimizers(name: str, expected: object) -> None:
    given = training(
        f"sparse_optimizer={name}", "sparse_lr=0.5", "sparse_weight_decay=0.25", "beta1=0.8", "beta2=0.98"
    )
    assert sparse_optimizer(given) == expected


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)], ids=["adam", "adamw"]
)
def test_dense_optimizers(name: str, kind: type) -> None:
    given = training(f"dense_optimizer={name}", "dense_lr=0.1", "weight_decay=0.3", "beta2=0.98")
    optimizer = dense_optimizer(given)([nn.Parameter(torch.ones(2))])
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.1, (0.9, 0.98), 0.3)


def test_a_schedule_ends_with_the_run_unless_told() -> None:
    with_run = lr_factor(training("lr_schedule=warmup-cosine", "warmup_steps=2"), 10)
    assert with_run is not None
    assert [with_run(step) for step in (0, 1, 2, 10, 50)] == pytest.approx([0.5, 1.0, 1.0, 0.0, 0.0])
    assert with_run(6) == pytest.approx(0.5 * (1 + math.cos(math.pi * 4 / 8)))
    longer = lr_factor(training("lr_schedule=warmup-linear", "lr_steps=20"), 10)
    assert longer is not None
    assert longer(10) == pytest.approx(0.5)


def test_constant_rates_need_no_factor_but_may_warm_up() -> None:
    assert lr_factor(Training(), 10) is None
    factor = lr_factor(training("warmup_steps=4"), 2)
    assert factor is not None
    assert [factor(step) for step in (0, 3, 9)] == [0.25, 1.0, 1.0]


def test_a_warm_up_longer_than_the_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="warmup_steps=10 leaves nothing of warmup-linear over 10 steps"):
        lr_factor(training("lr_schedule=warmup-linear", "warmup_steps=10"), 10)


def test_clipping() -> None:
    assert clipping(Training()) is None
    assert clipping(training("max_grad_norm=2")) == GradientClipping(2.0, "dense")
    assert clipping(training("max_grad_norm=2", "clip_scope=all")) == GradientClipping(2.0, "all")


@pytest.mark.parametrize(("name", "expected"), [("none", torch.float32), ("bfloat16", torch.bfloat16)])
def test_autocast(name: str, expected: torch.dtype) -> None:
    with autocast(training(f"autocast={name}"), CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is expected


def test_a_setup_carries_all_of_it() -> None:
    settings = parse_settings(["lr_schedule=warmup-linear", "max_grad_norm=1", "replicas=3"], [])
    setup = make_setup(settings, FakeWorkload(3), CPU, 10, "float64")
    assert next(setup.model.parameters()).dtype is torch.float64
    assert setup.options == {"replicas": 3}
    assert setup.clipping is not None
    for factor in (setup.dense_lr_factor, setup.sparse_lr_factor):
        assert factor is not None
        assert factor(5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["autocast=bfloat16", "dtype=float64"], "autocast=bfloat16 leaves float64 as it is"),
        (["lr_steps=5"], "lr_steps needs an lr_schedule that ends"),
        (["beta2=1"], "beta2 must be less than 1, got '1'"),
        (["warmup_steps=1.5"], "warmup_steps must be a whole number of at least 0"),
        (["lr_schedule=warmup-cosin"], "did you mean 'warmup-cosine'"),
        (["clip_scope=al"], "did you mean 'all'"),
        (["autocast=bf16"], "did you mean 'bfloat16'"),
        (["dense_optimizer=adamm"], "dense_optimizer cannot be 'adamm'"),
    ],
)
def test_settings_that_make_no_sense_name_the_way_out(pairs: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_settings(pairs, [])
