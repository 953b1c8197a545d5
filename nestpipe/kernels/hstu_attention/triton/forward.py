"""The forward kernel: a program holds a block of one sample's queries of one head."""

from __future__ import annotations

import triton
import triton.language as tl

from nestpipe.kernels.hstu_attention.triton.blocks import (
    load_tokens,
    sample_of,
    scores_of,
    store_tokens,
    visible,
    weights_of,
)


@triton.jit
def forward(
    q, k, v, offsets, position_bias, time_bias, timestamps, edges, out,
    q_stride, k_stride, v_stride, num_heads, max_length, dim, value_dim,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    sample, head = tl.program_id(0) // num_heads, tl.program_id(0) % num_heads
    first, length = sample_of(offsets, sample)
    block = tl.program_id(1)
    if block * BLOCK >= length:
        return
    query = block * BLOCK + tl.arange(0, BLOCK)
    queries = load_tokens(q, first, query, length, q_stride, head, dim, DIM)
    attended = tl.zeros([BLOCK, VALUE_DIM], tl.float32)
    num_blocks = tl.cdiv(length, BLOCK)
    if CAUSAL:
        num_blocks = block + 1
    for other in range(num_blocks):
        key = other * BLOCK + tl.arange(0, BLOCK)
        keys = load_tokens(k, first, key, length, k_stride, head, dim, DIM)
        values = load_tokens(v, first, key, length, v_stride, head, value_dim, VALUE_DIM)
        mask = visible(query[:, None], key[None, :], length, CAUSAL)
        scores = scores_of(
            queries, keys, query[:, None], key[None, :], mask, first, length,
            position_bias, time_bias, timestamps, edges, PRECISION,
        )  # fmt: skip
        weights = weights_of(scores, mask).to(values.dtype)
        attended = tl.dot(weights, values, attended, input_precision=PRECISION)
    stride = num_heads * value_dim
    store_tokens(out, attended / max_length, first, query, length, stride, head, value_dim, VALUE_DIM)
