"""HSTU's attention in plain torch: a padded block of the samples, all pairs of its tokens at once."""

from __future__ import annotations

import torch
from torch.nn import functional

from nestpipe.kernels.hstu_attention.relative_bias import TokenTimes, bias_of, position_distances
from nestpipe.kernels.padding import Padding


def hstu_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    padding: Padding,
    max_length: int,
    position_bias: torch.Tensor | None,
    time_bias: torch.Tensor | None,
    times: TokenTimes | None,
    causal: bool,
) -> torch.Tensor:
    """`q`, `k` [num_tokens, heads, dim], `v` [num_tokens, heads, value_dim] -> as `v`."""
    num_heads = q.shape[1]
    q, k, values = (padding.pad(part).transpose(1, 2) for part in (q, k, v))
    distance = position_distances(padding.width, q.device)
    scores = q @ k.transpose(2, 3)
    bias = _bias(distance, position_bias, time_bias, times)
    if bias is not None:
        scores = scores + bias.unsqueeze(1)
    weights = functional.silu(scores)
    # Where the biases have made a pass over all pairs anyway, another one divides the weights, as the
    # formula has it; otherwise it is cheaper to divide the values, of which there are fewer.
    divides_weights = bias is not None
    if divides_weights:
        weights = weights / max_length
    weights = weights.masked_fill(_hidden(distance, padding, causal), 0.0)
    attended = padding.joined(weights.to(v.dtype) @ values)
    if not divides_weights:
        attended = attended / max_length
    return attended.unflatten(1, (num_heads, v.shape[2]))


def _bias(
    distance: torch.Tensor,
    position_bias: torch.Tensor | None,
    time_bias: torch.Tensor | None,
    times: TokenTimes | None,
) -> torch.Tensor | None:
    """The sum of the biases that there are, [1 or S, width, width]."""
    bias = None if position_bias is None else position_bias[distance.clamp(min=0)].unsqueeze(0)
    if time_bias is None:
        return bias
    assert times is not None
    of_times = bias_of(time_bias, times.buckets)
    return of_times if bias is None else bias + of_times


def _hidden(distance: torch.Tensor, padding: Padding, causal: bool) -> torch.Tensor:
    """Which keys a query does not see, broadcastable to [S, heads, width, width]."""
    if causal:
        # Padding comes after a sample's tokens, so causality keeps it out as well.
        return distance < 0
    places = torch.arange(padding.width, device=distance.device)
    return (places >= padding.lengths.unsqueeze(1))[:, None, None, :]
