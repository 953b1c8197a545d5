"""TorchRec's updates: the fused optimizers' settings, learning rates by step, and clipping."""

from __future__ import annotations

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from baselines.interface import Setup
from nestpipe.lr import LrFactor, factor_at
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer


def fused_params(optimizer: SparseOptimizer, device: torch.device) -> dict[str, Any]:
    """FBGEMM's settings for the same update; eps is always given, as its default is not everybody's.

    Raises ValueError for an optimizer that FBGEMM's kernel on this device does not have.
    """
    params: dict[str, Any] = {"learning_rate": optimizer.lr}
    if isinstance(optimizer, RowWiseAdagrad):
        params |= {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "eps": optimizer.eps}
        if optimizer.weight_decay:
            params |= {"weight_decay": optimizer.weight_decay, "weight_decay_mode": WeightDecayMode.L2}
        return params
    if isinstance(optimizer, SGD | Adagrad) and optimizer.weight_decay:
        raise ValueError(
            f"TorchRec's fused {type(optimizer).__name__} has no weight decay: use RowWiseAdagrad, "
            "weight_decay=0 or a method on the engine"
        )
    if isinstance(optimizer, SGD):
        return params | {"optimizer": EmbOptimType.EXACT_SGD}
    if isinstance(optimizer, Adagrad):
        return params | {"optimizer": EmbOptimType.EXACT_ADAGRAD, "eps": optimizer.eps}
    if isinstance(optimizer, Adam) and device.type != "cpu":
        beta1, beta2 = optimizer.betas
        return params | {
            "optimizer": EmbOptimType.ADAM,
            "beta1": beta1,
            "beta2": beta2,
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
        }
    raise ValueError(
        f"TorchRec's fused lookup on {device.type} has no {type(optimizer).__name__}: "
        "use SGD, RowWiseAdagrad or Adagrad for the tables"
    )


def check_updates(setup: Setup) -> None:
    """Raises ValueError for what a fused update, applied during backward, cannot do or would leave out."""
    if setup.clipping is not None and setup.clipping.scope != "dense":
        raise ValueError(
            "TorchRec updates rows during backward, before all gradients are known: clipping with "
            f'scope={setup.clipping.scope!r} needs a method on the engine; use scope="dense" here'
        )
    decays = getattr(setup.sparse_optimizer, "weight_decay", 0.0) > 0
    pooled = any(isinstance(module, EmbeddingBagCollection) for module in setup.model.modules())
    # FBGEMM's kernel for pooled lookups on the CPU takes the setting and does not look at it.
    if pooled and setup.device.type == "cpu" and decays:
        raise ValueError(
            "TorchRec's fused lookup for EmbeddingBagCollection ignores weight_decay on cpu: use "
            "weight_decay=0, an EmbeddingCollection or a method on the engine"
        )


class StepUpdates:
    """The learning rates and the clipping of one runner's steps.

    `fused` updates the rows and `dense` the other parameters; their learning rates at construction are
    the base rates. Without factors no rate is touched, so that a scheduler's stays.
    """

    def __init__(self, setup: Setup, fused: torch.optim.Optimizer, dense: torch.optim.Optimizer) -> None:
        self._fused = fused if setup.sparse_lr_factor is not None else None
        self._rates: list[tuple[LrFactor, dict[str, Any], Any]] = []
        for factor, optimizer in ((setup.sparse_lr_factor, fused), (setup.dense_lr_factor, dense)):
            if factor is not None:
                self._rates += [(factor, group, group["lr"]) for group in optimizer.param_groups]
        self._clipping = setup.clipping
        self._handle = None
        if self._clipping is not None and dense.param_groups:
            self._handle = dense.register_step_pre_hook(self._clip)

    def begin_step(self, step: int) -> None:
        """Put the rates of `step`, counted from 0, in force."""
        for factor, group, base in self._rates:
            group["lr"] = base * factor_at(factor, step)
        if self._fused is not None:
            # This hands the rates to the kernels, which update their rows during backward.
            self._fused.step()

    def close(self) -> None:
        """Leave the dense optimizer without the hook."""
        if self._handle is not None:
            self._handle.remove()

    def _clip(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # DDP has averaged the gradients: every worker finds the same norm.
        assert self._clipping is not None
        parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, self._clipping.max_norm)
