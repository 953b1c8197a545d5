"""HSTU (Zhai et al., ICML 2024) on jagged sequences, with the next-item loss.

A block on tokens x: `[U, V, Q, K] = split(SiLU(LayerNorm(x) W))`, `A = causal(SiLU(Q K^T + rab)) / n_max`,
`y = W_o Dropout(U * LayerNorm(A V)) + x`, where rab is a learned bias of the distance in positions plus one
of the distance in time, bucket `floor(ln(max(|dt|, 1)) / 0.301)` in 0 ... 128, dt in seconds. There is no
softmax, so a token's state does not depend on padding or on the batch's other samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from nestpipe.kernels.hstu_attention import hstu_attention
from nestpipe.kernels.hstu_attention.relative_bias import NUM_TIME_BUCKETS
from workloads.interface import SideTable
from workloads.models.configs import HstuConfig
from workloads.models.dropout import TokenDropout
from workloads.models.initial import initialise
from workloads.models.sequence_model import SequenceModel, Tokens


class HstuBlock(nn.Module):
    """One block; see the module's docstring."""

    def __init__(self, config: HstuConfig, layer: int) -> None:
        super().__init__()
        dim = config.embedding_dim
        self.num_heads = config.num_heads
        self.max_length = config.max_length
        self.norm = nn.LayerNorm(dim)
        self.uvqk = nn.Linear(dim, 4 * dim, bias=False)
        self.attention_norm = nn.LayerNorm(dim)
        self.dropout = TokenDropout(config.dropout, layer)
        self.output = nn.Linear(dim, dim, bias=False)
        self.position_bias = nn.Parameter(torch.zeros(config.max_length))
        self.time_bias = nn.Parameter(torch.zeros(NUM_TIME_BUCKETS))

    def forward(self, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """States [num_tokens, dim] -> [num_tokens, dim]."""
        u, v, q, k = functional.silu(self.uvqk(self.norm(x))).chunk(4, dim=1)
        v, q, k = (part.unflatten(1, (self.num_heads, -1)) for part in (v, q, k))
        attended = hstu_attention(
            q,
            k,
            v,
            tokens.padding,
            max_length=self.max_length,
            position_bias=self.position_bias,
            time_bias=self.time_bias,
            times=tokens.times,
        )
        gated = u * self.attention_norm(attended.flatten(1))
        gated = self.dropout(gated, tokens.padding, tokens.seeds)
        projected: torch.Tensor = self.output(gated)
        return projected + x


def build(
    config: HstuConfig, num_rows: Sequence[int], seed: int, sides: Sequence[SideTable] = ()
) -> SequenceModel:
    """The model of one table of items and its sides, with weights that are a function of `seed`."""
    blocks = [HstuBlock(config, layer) for layer in range(config.num_blocks)]
    return initialise(SequenceModel(config, blocks, num_rows, sides, uses_time=True), seed)
