"""SASRec against its equations on one sample at a time, with dense matrices and explicit masks."""

import math

import pytest
import torch

from tests.workloads.sequence_models import SIDES, Reference, check_against, layer_norm, silu


class SasrecReference(Reference):
    def block(self, x: torch.Tensor, times: list[int], w: dict[str, torch.Tensor]) -> torch.Tensor:
        dim, heads = self.config.embedding_dim, self.config.num_heads
        size = dim // heads
        q, k, v = (layer_norm(x, w["norm.weight"], w["norm.bias"]) @ w["qkv.weight"].T).split(dim, dim=1)
        mask = torch.full((len(x), len(x)), -math.inf, dtype=x.dtype).triu(1)
        attended = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            scores = torch.exp(q[:, own] @ k[:, own].T / math.sqrt(size) + mask)
            attended.append(scores / scores.sum(1, keepdim=True) @ v[:, own])
        s = x + torch.cat(attended, dim=1)
        inner = layer_norm(s, w["ffn.0.weight"], w["ffn.0.bias"]) @ w["ffn.1.weight"].T + w["ffn.1.bias"]
        active = silu(inner) if self.config.activation == "silu" else inner * (inner > 0)
        return s + active @ w["ffn.3.weight"].T + w["ffn.3.bias"]

    def end(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weights["head.last_norm.weight"], self.weights["head.last_norm.bias"])


@pytest.mark.parametrize(
    ("num_blocks", "num_heads", "activation"), [(1, 1, "relu"), (2, 2, "silu"), (3, 6, "silu")]
)
def test_loss_output_and_every_gradient_against_a_loop(num_blocks: int, num_heads: int, activation: str):
    check_against(
        "sasrec", SasrecReference, num_blocks=num_blocks, num_heads=num_heads, activation=activation
    )


def test_sides_without_positions_against_a_loop():
    check_against("sasrec", SasrecReference, SIDES, positions=False)
