"""The engine's sparse optimizers against FBGEMM's fused ones, number by number."""

from __future__ import annotations

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from baselines.torchrec_optim import fused_params
from nestpipe.lr import Constant, LrFactor, StepDecay
from nestpipe.optim import SGD, Adagrad, Adam, RowWiseAdagrad, SparseOptimizer

NUM_ROWS, DIM, NUM_STEPS = 37, 8, 7


def fbgemm_table(optimizer: SparseOptimizer) -> SplitTableBatchedEmbeddingBagsCodegen:
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(NUM_ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        pooling_mode=PoolingMode.NONE,
        **fused_params(optimizer, torch.device("cpu")),
    )
    table.init_embedding_weights_uniform(-0.5, 0.5)
    return table


# An eps of the size of the gradients shows on which side of the root it stands.
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.3),
        RowWiseAdagrad(0.1),
        RowWiseAdagrad(0.1, eps=0.5),
        RowWiseAdagrad(0.1, weight_decay=0.7),
        Adagrad(0.1),
        Adagrad(0.1, eps=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("lr_factor", [Constant(), StepDecay(2, 0.5)], ids=["constant", "falling"])
def test_matches_fbgemm(optimizer: SparseOptimizer, lr_factor: LrFactor) -> None:
    torch.manual_seed(3)
    table = fbgemm_table(optimizer)
    (fused,) = table.split_embedding_weights()
    weights = fused.clone()
    state = {name: torch.zeros(NUM_ROWS, width) for name, width in optimizer.state_widths(DIM).items()}
    for step in range(1, NUM_STEPS + 1):
        table.set_learning_rate(optimizer.lr * lr_factor(step - 1))
        ids = torch.randint(0, NUM_ROWS, (63 if step != 4 else 1,))
        gradients = torch.randn(ids.numel(), DIM)
        (table(ids, torch.tensor([0, ids.numel()])) * gradients).sum().backward()
        rows = ids.unique()
        summed = torch.zeros(NUM_ROWS, DIM).index_add_(0, ids, gradients)[rows]
        touched, own = weights[rows], {name: tensor[rows] for name, tensor in state.items()}
        optimizer.update(touched, own, summed, step, lr_factor(step - 1))
        weights[rows] = touched
        for name, tensor in own.items():
            state[name][rows] = tensor
    torch.testing.assert_close(weights, fused.detach(), rtol=1e-6, atol=1e-6)
    if state:
        ((total, *_),) = table.split_optimizer_states()
        torch.testing.assert_close(state["sum"].view_as(total), total, rtol=1e-6, atol=1e-6)


def test_adam_matches_torch_where_every_row_is_touched() -> None:
    # FBGEMM has no Adam for the CPU; its formula is torch's, the steps counted by the run.
    optimizer = Adam(0.1, betas=(0.8, 0.9), eps=0.5)
    torch.manual_seed(3)
    expected = torch.nn.Parameter(torch.randn(NUM_ROWS, DIM))
    dense = torch.optim.Adam([expected], lr=0.1, betas=(0.8, 0.9), eps=0.5)
    weights = expected.detach().clone()
    state = {name: torch.zeros(NUM_ROWS, width) for name, width in optimizer.state_widths(DIM).items()}
    for step in range(1, NUM_STEPS + 1):
        expected.grad = torch.randn(NUM_ROWS, DIM)
        optimizer.update(weights, state, expected.grad.clone(), step)
        dense.step()
    torch.testing.assert_close(weights, expected.detach(), rtol=1e-6, atol=1e-6)


def test_adam_on_an_accelerator_keeps_its_hyper_parameters() -> None:
    params = fused_params(Adam(0.1, betas=(0.8, 0.9), eps=0.5, weight_decay=0.01), torch.device("cuda"))
    assert params == {
        "optimizer": EmbOptimType.ADAM,
        "learning_rate": 0.1,
        "beta1": 0.8,
        "beta2": 0.9,
        "eps": 0.5,
        "weight_decay": 0.01,
    }
