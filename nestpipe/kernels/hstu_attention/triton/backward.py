"""The gradients of queries, and of keys and values: two kernels, so that no sum needs an atomic addition."""

from __future__ import annotations

import triton
import triton.language as tl

from nestpipe.kernels.hstu_attention.triton.blocks import (
    load_tokens,
    sample_of,
    score_gradients,
    scores_of,
    store_tokens,
    visible,
    weights_of,
)


@triton.jit
def query_gradient(
    q, k, v, gradient, offsets, position_bias, time_bias, timestamps, edges, of_queries,
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
    stride = num_heads * value_dim
    queries = load_tokens(q, first, query, length, q_stride, head, dim, DIM)
    of_attended = load_tokens(gradient, first, query, length, stride, head, value_dim, VALUE_DIM)
    total = tl.zeros([BLOCK, DIM], tl.float32)
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
        of_scores = score_gradients(of_attended, values, scores, mask, PRECISION).to(keys.dtype)
        total = tl.dot(of_scores, keys, total, input_precision=PRECISION)
    stride = num_heads * dim
    store_tokens(of_queries, total / max_length, first, query, length, stride, head, dim, DIM)


@triton.jit
def key_value_gradient(
    q, k, v, gradient, offsets, position_bias, time_bias, timestamps, edges, of_keys, of_values,
    q_stride, k_stride, v_stride, num_heads, max_length, dim, value_dim,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    sample, head = tl.program_id(0) // num_heads, tl.program_id(0) % num_heads
    first, length = sample_of(offsets, sample)
    block = tl.program_id(1)
    if block * BLOCK >= length:
        return
    key = block * BLOCK + tl.arange(0, BLOCK)
    stride, value_stride = num_heads * dim, num_heads * value_dim
    keys = load_tokens(k, first, key, length, k_stride, head, dim, DIM)
    values = load_tokens(v, first, key, length, v_stride, head, value_dim, VALUE_DIM)
    keys_total = tl.zeros([BLOCK, DIM], tl.float32)
    values_total = tl.zeros([BLOCK, VALUE_DIM], tl.float32)
    first_block = 0
    if CAUSAL:
        first_block = block
    # Keys x queries, so that no block that was computed has to be transposed.
    for other in range(first_block, tl.cdiv(length, BLOCK)):
        query = other * BLOCK + tl.arange(0, BLOCK)
        queries = load_tokens(q, first, query, length, q_stride, head, dim, DIM)
        of_attended = load_tokens(gradient, first, query, length, value_stride, head, value_dim, VALUE_DIM)
        mask = visible(query[None, :], key[:, None], length, CAUSAL)
        scores = scores_of(
            keys, queries, query[None, :], key[:, None], mask, first, length,
            position_bias, time_bias, timestamps, edges, PRECISION,
        )  # fmt: skip
        weights = weights_of(scores, mask).to(of_attended.dtype)
        values_total = tl.dot(weights, of_attended, values_total, input_precision=PRECISION)
        of_scores = score_gradients(values, of_attended, scores, mask, PRECISION).to(queries.dtype)
        keys_total = tl.dot(of_scores, queries, keys_total, input_precision=PRECISION)
    store_tokens(of_keys, keys_total / max_length, first, key, length, stride, head, dim, DIM)
    values_total = values_total / max_length
    store_tokens(of_values, values_total, first, key, length, value_stride, head, value_dim, VALUE_DIM)
