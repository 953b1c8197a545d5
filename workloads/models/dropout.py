"""Dropout whose mask is a function of the sample's seed, not of the batch it is in."""

from __future__ import annotations

import torch
from torch import nn

from nestpipe.kernels.padding import Padding
from workloads.hashing import FACTORS, GOLDEN, SHIFTS


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _shifted(state: torch.Tensor, shift: int) -> torch.Tensor:
    # torch shifts signed integers arithmetically: clear the copies of the sign.
    return (state >> shift) & ((1 << (64 - shift)) - 1)


def _mix(state: torch.Tensor) -> torch.Tensor:
    """The bijection of `workloads.hashing`, on int64."""
    state = (state ^ _shifted(state, SHIFTS[0])) * _signed(FACTORS[0])
    state = (state ^ _shifted(state, SHIFTS[1])) * _signed(FACTORS[1])
    return state ^ _shifted(state, SHIFTS[2])


def uniform_of(seeds: torch.Tensor, *coordinates: torch.Tensor) -> torch.Tensor:
    """Uniform float64 numbers in [0, 1), one for each element of the broadcast int64 arguments."""
    state = _mix(seeds)
    for coordinate in coordinates:
        state = _mix((state ^ coordinate) + _signed(GOLDEN))
    return _shifted(state, 11).double() * 2.0**-53


def seeded_dropout(
    tokens: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, layer: int, rate: float
) -> torch.Tensor:
    """Zero a share `rate` of `tokens` [n, dim] and scale the rest by 1 / (1 - rate).

    The mask is a function of each token's `seeds` and `positions` ([n], int64), the `layer` and the
    feature's index.
    """
    features = torch.arange(tokens.shape[1], device=tokens.device)
    layers = torch.full_like(positions, layer)
    draws = uniform_of(seeds.unsqueeze(1), layers.unsqueeze(1), positions.unsqueeze(1), features)
    return tokens * ((draws >= rate).to(tokens.dtype) / (1.0 - rate))


class TokenDropout(nn.Module):
    """`seeded_dropout` in training; `layer` tells this place of the model from its other ones."""

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate = rate
        self.layer = layer

    def forward(self, tokens: torch.Tensor, padding: Padding, seeds: torch.Tensor | None) -> torch.Tensor:
        """[num_tokens, dim] -> [num_tokens, dim], from one seed a sample; ValueError without seeds."""
        if not self.training or self.rate == 0:
            return tokens
        if seeds is None:
            raise ValueError("a model with dropout needs batches with `seeds`, one a sample")
        return seeded_dropout(tokens, seeds[padding.samples], padding.positions, self.layer, self.rate)
