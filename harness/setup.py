"""From the settings of a run to what each method is built from: model, optimizers, learning rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from baselines.interface import LrFactor, Setup
from harness.options import Settings, Training
from nestpipe.clipping import GradientClipping
from nestpipe.lr import Constant, WarmupCosine, WarmupLinear
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer
from workloads.interface import Workload

_OTHER_SPARSE: Mapping[str, Callable[..., SparseOptimizer]] = {
    "rowwise_adagrad": RowWiseAdagrad,
    "sgd": SGD,
    "adagrad": Adagrad,
}
_DECAYS: Mapping[str, Callable[..., LrFactor]] = {
    "warmup-linear": WarmupLinear,
    "warmup-cosine": WarmupCosine,
}


def make_setup(
    settings: Settings, workload: Workload, device: torch.device, num_steps: int, dtype: str | None = None
) -> Setup:
    """A setup with the workload's initial weights in it, for `num_steps` steps.

    `dtype` replaces that of the settings.
    """
    training = settings.training
    factor = lr_factor(training, num_steps)
    return Setup(
        model=workload.model(torch.device("cpu"), getattr(torch, dtype or training.dtype)),
        sparse_optimizer=sparse_optimizer(training),
        dense_optimizer=dense_optimizer(training),
        device=device,
        options=settings.method,
        dense_lr_factor=factor,
        sparse_lr_factor=factor,
        clipping=clipping(training),
    )


def sparse_optimizer(training: Training) -> SparseOptimizer:
    """The optimizer of the embedding tables."""
    lr, weight_decay = training.sparse_lr, training.sparse_weight_decay
    if training.sparse_optimizer == "adam":
        return Adam(lr, betas=(training.beta1, training.beta2), weight_decay=weight_decay)
    return _OTHER_SPARSE[training.sparse_optimizer](lr=lr, weight_decay=weight_decay)


def dense_optimizer(training: Training) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """What makes the optimizer of the dense parameters."""
    kind = torch.optim.AdamW if training.dense_optimizer == "adamw" else torch.optim.Adam

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(
            parameters,
            lr=training.dense_lr,
            betas=(training.beta1, training.beta2),
            weight_decay=training.weight_decay,
        )

    return make


def lr_factor(training: Training, num_steps: int) -> LrFactor | None:
    """The factor on both learning rates by step, for a run of `num_steps`; None where they never change.

    ValueError for a schedule that the warm-up leaves nothing of.
    """
    warmup, total = training.warmup_steps, training.lr_steps or num_steps
    if training.lr_schedule == "constant":
        return Constant(warmup_steps=warmup) if warmup else None
    if warmup >= total:
        raise ValueError(
            f"warmup_steps={warmup} leaves nothing of {training.lr_schedule} over {total} steps: use fewer, "
            "or more lr_steps"
        )
    return _DECAYS[training.lr_schedule](warmup_steps=warmup, total_steps=total)


def clipping(training: Training) -> GradientClipping | None:
    """How gradients are clipped; None where they are not."""
    if not training.max_grad_norm:
        return None
    return GradientClipping(training.max_grad_norm, "all" if training.clip_scope == "all" else "dense")


def autocast(training: Training, device: torch.device) -> AbstractContextManager[object]:
    """The number format of matrix products, to be entered around training and evaluation."""
    if training.autocast == "none":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, training.autocast))
