"""SASRec (Kang and McAuley, ICDM 2018) in plain torch, on jagged sequences, with the next-item loss.

A block on tokens x, which carry a learned vector of their position:
`s = x + Dropout(softmax(causal(Q K^T / sqrt(d))) V)` with `[Q, K, V] = LayerNorm(x) W` and d elements a
head, and `y = s + Dropout(W_2 act(W_1 LayerNorm(s) + b_1) + b_2)`; a LayerNorm ends the last block. In place
of the paper's binary loss with one negative it has the sampled softmax of the other sequence models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from nestpipe.kernels.hstu_attention.relative_bias import position_distances
from workloads.interface import SideTable
from workloads.models.activation import activation_of
from workloads.models.configs import SasrecConfig
from workloads.models.dropout import TokenDropout
from workloads.models.initial import initialise
from workloads.models.sequence_model import SequenceModel, Tokens


class SasrecBlock(nn.Module):
    """One block; see the module's docstring."""

    def __init__(self, config: SasrecConfig, layer: int) -> None:
        super().__init__()
        dim = config.embedding_dim
        self.num_heads = config.num_heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.attention_dropout = TokenDropout(config.dropout, 2 * layer)
        self.ffn = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim), activation_of(config.activation), nn.Linear(dim, dim)
        )
        self.ffn_dropout = TokenDropout(config.dropout, 2 * layer + 1)

    def forward(self, x: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        """States [num_tokens, dim] -> [num_tokens, dim]."""
        padding, seeds = tokens.padding, tokens.seeds
        q, k, v = (padding.heads(part, self.num_heads) for part in self.qkv(self.norm(x)).chunk(3, dim=1))
        attended = padding.joined(_attend(q, k, v))
        s = x + self.attention_dropout(attended, padding, seeds)
        y: torch.Tensor = s + self.ffn_dropout(self.ffn(s), padding, seeds)
        return y


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal softmax attention: [S, num_heads, width, d] each -> [S, num_heads, width, d]."""
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    # Padding comes after a sample's tokens, so causality keeps it out as well.
    ahead = position_distances(q.shape[2], q.device) < 0
    return functional.softmax(scores.masked_fill(ahead, float("-inf")), dim=3) @ v


def build(
    config: SasrecConfig, num_rows: Sequence[int], seed: int, sides: Sequence[SideTable] = ()
) -> SequenceModel:
    """The model of one table of items and its sides, with weights that are a function of `seed`."""
    blocks = [SasrecBlock(config, layer) for layer in range(config.num_blocks)]
    norm = nn.LayerNorm(config.embedding_dim)
    model = SequenceModel(config, blocks, num_rows, sides, uses_time=False, last_norm=norm)
    return initialise(model, seed)
