"""The gradients of the biases: each program writes its own sums, which torch then adds in a fixed order."""

from __future__ import annotations

import triton
import triton.language as tl

from nestpipe.kernels.hstu_attention.triton.blocks import (
    LAST_BUCKET,
    buckets_of,
    load_tokens,
    sample_of,
    score_gradients,
    scores_of,
    visible,
)

NUM_BUCKET_SUMS = 256
"""The elements of a program's sums by time bucket, 64 x 4; those beyond the last bucket are zeros."""
_BUCKET_ROWS, _BUCKET_COLUMNS = tl.constexpr(64), tl.constexpr(4)


@triton.jit
def _sums_of_buckets(values, buckets, mask, sums):
    """`sums` [64, 4] plus the values of each bucket; four buckets a pass, only those that occur."""
    lowest = tl.min(tl.where(mask, buckets, LAST_BUCKET)) // _BUCKET_COLUMNS
    highest = tl.max(tl.where(mask, buckets, 0)) // _BUCKET_COLUMNS
    row, column = tl.arange(0, _BUCKET_ROWS), tl.arange(0, _BUCKET_COLUMNS)
    for some in range(lowest, highest + 1):
        is_own = buckets[:, :, None] == (column + some * _BUCKET_COLUMNS)[None, None, :]
        of_some = tl.sum(tl.sum(tl.where(is_own, values[:, :, None], 0.0), axis=0), axis=0)
        sums += tl.where((row == some)[:, None], of_some[None, :], 0.0)
    return sums


@triton.jit
def _sums_of_diagonals(values, BLOCK: tl.constexpr):
    """Sums of the elements [i, j] of a square block by i - j: of -BLOCK ... -1, and of 0 ... BLOCK - 1."""
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    # Each row is turned round until a column holds one distance, modulo BLOCK.
    turned = tl.gather(values, (row - column) & (BLOCK - 1), axis=1)
    ahead = tl.sum(tl.where(column > row, turned, 0.0), axis=0)
    behind = tl.sum(tl.where(column > row, 0.0, turned), axis=0)
    return ahead, behind


@triton.jit
def bias_gradient(
    q, k, v, gradient, offsets, position_bias, time_bias, timestamps, edges, of_positions, of_times,
    q_stride, k_stride, v_stride, num_heads, max_length, dim, value_dim,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # A block of one sample's queries and all heads, which share the biases. `of_positions`
    # [S * blocks, blocks * BLOCK] and `of_times` [S * blocks, 256] hold zeros.
    sample, block = tl.program_id(0), tl.program_id(1)
    first, length = sample_of(offsets, sample)
    if block * BLOCK >= length:
        return
    program = sample.to(tl.int64) * tl.num_programs(1) + block
    inside = tl.arange(0, BLOCK)
    query = block * BLOCK + inside
    stride = num_heads * value_dim
    # Sums of the distances that the next block of keys shares with this one, and of all keys ahead.
    shared = tl.zeros([BLOCK], tl.float32)
    ahead = tl.zeros([1], tl.float32)
    by_time = tl.zeros([_BUCKET_ROWS, _BUCKET_COLUMNS], tl.float32)
    last = tl.cdiv(length, BLOCK) - 1
    if CAUSAL:
        last = block
    # From the last keys to the first, so that a block of distances is complete when it is written.
    for step in range(last + 1):
        other = last - step
        key = other * BLOCK + inside
        mask = visible(query[:, None], key[None, :], length, CAUSAL)
        of_scores = tl.zeros([BLOCK, BLOCK], tl.float32)
        for head in range(num_heads):
            queries = load_tokens(q, first, query, length, q_stride, head, dim, DIM)
            keys = load_tokens(k, first, key, length, k_stride, head, dim, DIM)
            values = load_tokens(v, first, key, length, v_stride, head, value_dim, VALUE_DIM)
            of_attended = load_tokens(gradient, first, query, length, stride, head, value_dim, VALUE_DIM)
            scores = scores_of(
                queries, keys, query[:, None], key[None, :], mask, first, length,
                position_bias, time_bias, timestamps, edges, PRECISION,
            )  # fmt: skip
            of_scores += score_gradients(of_attended, values, scores, mask, PRECISION)
        if of_times is not None:
            buckets = buckets_of(query[:, None], key[None, :], first, length, timestamps, edges)
            by_time = _sums_of_buckets(of_scores, buckets, mask, by_time)
        if of_positions is not None:
            by_position = of_positions + (program * tl.num_programs(1) + block - other) * BLOCK + inside
            if not CAUSAL:
                is_ahead = key[None, :] > query[:, None]
                ahead += tl.sum(tl.where(is_ahead, of_scores, 0.0))
                of_scores = tl.where(is_ahead, 0.0, of_scores)
            nearer, farther = _sums_of_diagonals(of_scores, BLOCK)
            if other < block:
                tl.store(by_position - BLOCK, (shared + nearer) / max_length)
            shared = farther + tl.where((inside == 0) & (other == block), ahead, 0.0)
    if of_positions is not None:
        by_position = of_positions + (program * tl.num_programs(1) + block) * BLOCK + inside
        tl.store(by_position, shared / max_length)
    if of_times is not None:
        row, column = tl.arange(0, _BUCKET_ROWS), tl.arange(0, _BUCKET_COLUMNS)
        place = row[:, None] * _BUCKET_COLUMNS + column[None, :]
        tl.store(of_times + program * (_BUCKET_ROWS * _BUCKET_COLUMNS) + place, by_time / max_length)
