"""FuXi-alpha (Ye et al., WWW 2025) in plain torch, on jagged sequences, with the next-item loss.

A block on tokens x: `[U, V, Q, K] = split(SiLU(RMSNorm(x) W))` and three channels of attention,
`A_sem = causal(SiLU(Q K^T)) / n_max`, A_pos a learned bias of the distance in positions and A_ts one of the
distance in time (buckets as in HSTU), both shared by the heads and causal; then
`o = W_0 Dropout(U * RMSNorm(concat(A_pos V, A_ts V, A_sem V))) + b_0 + x`, `z = Dropout(RMSNorm(o))` and
`y = W_2 (SiLU(W_1 z) * (W_3 z)) + o`. U is as wide as the three channels together. A query and a key have
`qk_dim` elements, a value `embedding_dim / num_heads`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from nestpipe.kernels.hstu_attention import hstu_attention
from nestpipe.kernels.hstu_attention.relative_bias import NUM_TIME_BUCKETS, bias_of, position_distances
from nestpipe.kernels.padding import Padding
from workloads.interface import SideTable
from workloads.models.configs import FuxiConfig
from workloads.models.dropout import TokenDropout
from workloads.models.initial import initialise
from workloads.models.sequence_model import SequenceModel, Tokens


class RmsNorm(nn.RMSNorm):
    """RMSNorm in the dtype of its weight, so that autocast does not round inside."""

    def __init__(self, dim: int) -> None:
        # torch's own default epsilon is the dtype's resolution: another function in every dtype.
        super().__init__(dim, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, dim] -> [n, dim]."""
        return super().forward(x.to(self.weight.dtype))


class FuxiAttention(nn.Module):
    """The three channels, gated: states [num_tokens, dim] -> [num_tokens, 3 * dim]."""

    def __init__(self, config: FuxiConfig) -> None:
        super().__init__()
        dim, qk = config.embedding_dim, config.num_heads * config.qk_dim
        self.num_heads = config.num_heads
        self.max_length = config.max_length
        self.widths = [3 * dim, dim, qk, qk]
        self.norm = RmsNorm(dim)
        self.uvqk = nn.Linear(dim, sum(self.widths), bias=False)
        self.channel_norm = RmsNorm(3 * dim)
        self.position_bias = nn.Parameter(torch.zeros(config.max_length))
        self.time_bias = nn.Parameter(torch.zeros(NUM_TIME_BUCKETS))

    def forward(self, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """See the class."""
        assert tokens.times is not None
        u, v, q, k = functional.silu(self.uvqk(self.norm(x))).split(self.widths, dim=1)
        channels = [
            *self._by_distance(v, tokens.padding, tokens.times.buckets),
            self._by_meaning(q, k, v, tokens.padding),
        ]
        gated: torch.Tensor = u * self.channel_norm(torch.cat(channels, dim=1))
        return gated

    def _by_distance(
        self, v: torch.Tensor, padding: Padding, buckets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A_pos V and A_ts V: [num_tokens, dim] each."""
        values, distance = padding.pad(v), position_distances(padding.width, v.device)
        ahead = distance < 0
        of_positions = self.position_bias[distance.clamp(min=0)].masked_fill(ahead, 0.0)
        of_times = bias_of(self.time_bias, buckets).masked_fill(ahead, 0.0)
        return padding.unpad(of_positions @ values), padding.unpad(of_times @ values)

    def _by_meaning(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, padding: Padding
    ) -> torch.Tensor:
        """A_sem V: [num_tokens, dim]."""
        q, k, v = (part.unflatten(1, (self.num_heads, -1)) for part in (q, k, v))
        return hstu_attention(q, k, v, padding, max_length=self.max_length).flatten(1)


class FuxiBlock(nn.Module):
    """One block; see the module's docstring."""

    def __init__(self, config: FuxiConfig, layer: int) -> None:
        super().__init__()
        dim = config.embedding_dim
        hidden = config.ffn_factor * dim
        self.attention = FuxiAttention(config)
        self.attention_dropout = TokenDropout(config.dropout, 2 * layer)
        self.w0 = nn.Linear(3 * dim, dim)
        self.ffn_norm = RmsNorm(dim)
        self.ffn_dropout = TokenDropout(config.dropout, 2 * layer + 1)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """States [num_tokens, dim] -> [num_tokens, dim]."""
        gated = self.attention_dropout(self.attention(x, tokens), tokens.padding, tokens.seeds)
        o = self.w0(gated) + x
        z = self.ffn_dropout(self.ffn_norm(o), tokens.padding, tokens.seeds)
        y: torch.Tensor = self.w2(functional.silu(self.w1(z)) * self.w3(z)) + o
        return y


def build(
    config: FuxiConfig, num_rows: Sequence[int], seed: int, sides: Sequence[SideTable] = ()
) -> SequenceModel:
    """The model of one table of items and its sides, with weights that are a function of `seed`."""
    blocks = [FuxiBlock(config, layer) for layer in range(config.num_blocks)]
    return initialise(SequenceModel(config, blocks, num_rows, sides, uses_time=True), seed)
