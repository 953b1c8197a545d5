"""FuXi-alpha against its equations on one sample at a time, with dense matrices and explicit masks."""

import pytest
import torch

from tests.workloads.sequence_models import SIDES, Reference, check_against, position_bias, silu, time_bias


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * weight


class FuxiReference(Reference):
    def block(self, x: torch.Tensor, times: list[int], w: dict[str, torch.Tensor]) -> torch.Tensor:
        dim, heads, qk = self.config.embedding_dim, self.config.num_heads, self.config.qk_dim
        projected = silu(rms_norm(x, w["attention.norm.weight"]) @ w["attention.uvqk.weight"].T)
        u, v, q, k = (
            projected[:, : 3 * dim],
            projected[:, 3 * dim : 4 * dim],
            projected[:, 4 * dim : 4 * dim + heads * qk],
            projected[:, 4 * dim + heads * qk :],
        )
        causal = torch.ones(len(x), len(x), dtype=x.dtype).tril()
        by_position = (position_bias(len(x), w["attention.position_bias"]) * causal) @ v
        by_time = (time_bias(times, w["attention.time_bias"]) * causal) @ v
        by_meaning = []
        for head in range(heads):
            own, value = (
                slice(head * qk, (head + 1) * qk),
                slice(head * dim // heads, (head + 1) * dim // heads),
            )
            weights = silu(q[:, own] @ k[:, own].T) / self.config.max_length
            by_meaning.append((weights * causal) @ v[:, value])
        channels = torch.cat([by_position, by_time, *by_meaning], dim=1)
        gated = u * rms_norm(channels, w["attention.channel_norm.weight"])
        o = gated @ w["w0.weight"].T + w["w0.bias"] + x
        z = rms_norm(o, w["ffn_norm.weight"])
        return (silu(z @ w["w1.weight"].T) * (z @ w["w3.weight"].T)) @ w["w2.weight"].T + o


@pytest.mark.parametrize(
    ("num_blocks", "num_heads", "qk_dim", "ffn_factor"), [(1, 1, 4, 1), (2, 2, 5, 3), (3, 6, 1, 2)]
)
def test_loss_output_and_every_gradient_against_a_loop(
    num_blocks: int, num_heads: int, qk_dim: int, ffn_factor: int
):
    check_against(
        "fuxi",
        FuxiReference,
        num_blocks=num_blocks,
        num_heads=num_heads,
        qk_dim=qk_dim,
        ffn_factor=ffn_factor,
    )


def test_sides_and_positions_against_a_loop():
    check_against("fuxi", FuxiReference, SIDES, positions=True, num_heads=2, qk_dim=3)
