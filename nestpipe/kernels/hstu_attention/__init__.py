"""HSTU's attention (Zhai et al., ICML 2024) on jagged sequences: pointwise SiLU weights, no softmax."""

from __future__ import annotations

import torch

from nestpipe.kernels.checks import ROW_DTYPES, check_contiguous, check_indices, check_same_device
from nestpipe.kernels.dispatch import Impl, uses_triton
from nestpipe.kernels.hstu_attention import reference
from nestpipe.kernels.hstu_attention.relative_bias import NUM_TIME_BUCKETS, TokenTimes
from nestpipe.kernels.padding import Padding

_OP = "hstu_attention"
MAX_DIM = 128
"""The longest vector of a head that a kernel's program holds without spilling much."""


def hstu_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    padding: Padding,
    *,
    max_length: int,
    position_bias: torch.Tensor | None = None,
    time_bias: torch.Tensor | None = None,
    times: TokenTimes | None = None,
    causal: bool = True,
    impl: Impl = "auto",
) -> torch.Tensor:
    """`A V` with `A = causal(SiLU(Q K^T + rab)) / max_length`, each sample and head by itself.

    `q` and `k` [num_tokens, heads, dim] and `v` [num_tokens, heads, value_dim] give [num_tokens, heads,
    value_dim]; a token's heads must lie together, tokens may lie apart. rab of a query i and a key j is
    `position_bias[i - j]` ([max_length], element 0 for keys ahead) plus `time_bias[bucket]` ([129]) of the
    distance of their `times`, see `time_buckets`; either may be left out. No sample has more than
    `max_length` tokens.

    The kernels hold no matrix of all pairs; backward computes the weights again, for the gradient of q, for
    those of k and v and for those of the biases. No sum depends on the order in which programs run, so a
    run is deterministic. With c bytes an element, forward moves c heads num_tokens (2 dim + 2 value_dim)
    bytes, the least possible, where the keys of a sample stay in cache; the biases' gradients move
    4 (width + 256) bytes of partial sums for each 32 queries, twice. Forward takes 2 (dim + value_dim)
    operations a pair and head, backward with its 9 products 4.5 times as many (2.5 with atomic additions).

    Heads of more than 128 elements and float64 have no kernel: `auto` takes the reference for them.
    Raises TypeError or ValueError naming the argument.
    """
    _check_tokens(q, k, v, padding, max_length)
    _check_biases(q, padding, max_length, position_bias, time_bias, times)
    missing = _why_no_kernel(q, v)
    if missing and impl == "triton":
        raise ValueError(f'{_OP}: {missing}; use impl="auto" or "reference"')
    if uses_triton(impl, q.device) and not missing:
        from nestpipe.kernels.hstu_attention.function import HstuAttention

        attended: torch.Tensor = HstuAttention.apply(
            q, k, v, padding, max_length, position_bias, time_bias, times, causal
        )
        return attended
    return reference.hstu_attention(q, k, v, padding, max_length, position_bias, time_bias, times, causal)


def _why_no_kernel(q: torch.Tensor, v: torch.Tensor) -> str:
    """What no kernel was written for, "" where one was."""
    if q.dtype == torch.float64:
        return "float64 has no Triton kernel"
    longest = max(q.shape[2], v.shape[2])
    return f"heads of {longest} elements have no Triton kernel" if longest > MAX_DIM else ""


def _check_tokens(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, padding: Padding, max_length: int
) -> None:
    for name, tokens in (("q", q), ("k", k), ("v", v)):
        if tokens.dim() != 3 or tokens.shape[:2] != (len(padding.samples), q.shape[1]):
            raise ValueError(
                f"{_OP}: {name} must be [num_tokens, heads, dim] with {len(padding.samples)} tokens and the "
                f"heads of q, got shape {tuple(tokens.shape)}"
            )
        if tokens.dtype not in ROW_DTYPES or tokens.dtype != q.dtype:
            raise TypeError(
                f"{_OP}: q, k and v must be of one floating-point dtype, got {q.dtype}, {name} {tokens.dtype}"
            )
        if not tokens[:1].is_contiguous():
            raise ValueError(
                f"{_OP}: the heads of a token of {name} must be contiguous; call .contiguous() first"
            )
    if k.shape != q.shape:
        raise ValueError(f"{_OP}: k must have the shape of q, {tuple(q.shape)}, got {tuple(k.shape)}")
    if padding.width > max_length:
        raise ValueError(f"{_OP}: a sample has {padding.width} tokens, more than max_length={max_length}")
    check_same_device(_OP, q=q, k=k, v=v, lengths=padding.lengths)


def _check_biases(
    q: torch.Tensor,
    padding: Padding,
    max_length: int,
    position_bias: torch.Tensor | None,
    time_bias: torch.Tensor | None,
    times: TokenTimes | None,
) -> None:
    for name, bias, size in (
        ("position_bias", position_bias, max_length),
        ("time_bias", time_bias, NUM_TIME_BUCKETS),
    ):
        if bias is None:
            continue
        if bias.shape != (size,) or not bias.is_floating_point():
            raise ValueError(
                f"{_OP}: {name} must be a floating-point vector [{size}], got {bias.dtype} {list(bias.shape)}"
            )
        check_contiguous(_OP, name, bias)
        check_same_device(_OP, q=q, **{name: bias})
    if time_bias is not None:
        if times is None:
            raise ValueError(f"{_OP}: time_bias needs times, the tokens' timestamps")
        check_indices(_OP, "timestamps_s", times.timestamps_s, len(padding.samples))
        check_same_device(_OP, q=q, timestamps_s=times.timestamps_s)
