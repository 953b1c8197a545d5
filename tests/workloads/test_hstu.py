"""HSTU against a plain loop over samples, tokens and heads."""

import math

import pytest
import torch

from tests.workloads.sequence_models import SIDES, Reference, check_against, layer_norm, silu


class HstuReference(Reference):
    def block(self, x: torch.Tensor, times: list[int], w: dict[str, torch.Tensor]) -> torch.Tensor:
        projected = [silu(w["uvqk.weight"] @ layer_norm(t, w["norm.weight"], w["norm.bias"])) for t in x]
        dim, heads = self.config.embedding_dim, self.config.num_heads
        output = []
        for i, token in enumerate(x):
            u = projected[i][:dim]
            parts = []
            for head in range(heads):
                own = slice(head * dim // heads, (head + 1) * dim // heads)
                attended = torch.zeros(dim // heads, dtype=token.dtype)
                for j in range(i + 1):
                    v, q, k = (
                        projected[j][dim : 2 * dim],
                        projected[i][2 * dim : 3 * dim],
                        projected[j][3 * dim :],
                    )
                    gap = max(abs(times[i] - times[j]), 1)
                    bucket = min(math.floor(math.log(gap) / 0.301), 128)
                    score = q[own] @ k[own] + w["position_bias"][i - j] + w["time_bias"][bucket]
                    attended = attended + silu(score) / self.config.max_length * v[own]
                parts.append(attended)
            normed = layer_norm(torch.cat(parts), w["attention_norm.weight"], w["attention_norm.bias"])
            output.append(w["output.weight"] @ (u * normed) + token)
        return torch.stack(output)


@pytest.mark.parametrize(("num_blocks", "num_heads"), [(1, 1), (2, 2), (3, 6)])
def test_loss_output_and_every_gradient_against_a_loop(num_blocks: int, num_heads: int):
    check_against("hstu", HstuReference, num_blocks=num_blocks, num_heads=num_heads)


def test_sides_and_positions_against_a_loop():
    check_against("hstu", HstuReference, SIDES, positions=True)
