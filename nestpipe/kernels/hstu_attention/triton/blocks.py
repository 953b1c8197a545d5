"""What the kernels share: blocks of tokens, and a block of scores with its biases and derivative.

A block holds the tokens of one sample, `token` their places in it; the sample has `length` tokens, the
`first` of which, 64 bits wide, is counted among all. Sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nestpipe.kernels.hstu_attention.relative_bias import NUM_TIME_BUCKETS, TIME_BUCKET_WIDTH

_BUCKET_WIDTH = tl.constexpr(TIME_BUCKET_WIDTH)
LAST_BUCKET = tl.constexpr(NUM_TIME_BUCKETS - 1)


@triton.jit
def sample_of(offsets, sample):
    """The first token of a sample, and its length."""
    first = tl.load(offsets + sample)
    return first, (tl.load(offsets + sample + 1) - first).to(tl.int32)


@triton.jit
def load_tokens(rows, first, token, length, stride, head, dim, DIM: tl.constexpr):
    """The vectors of one head [len(token), DIM], zeros beyond the sample and beyond `dim`."""
    column = tl.arange(0, DIM)
    mask = (token < length)[:, None] & (column < dim)[None, :]
    place = (first + token)[:, None] * stride + head * dim + column[None, :]
    return tl.load(rows + place, mask=mask, other=0.0)


@triton.jit
def store_tokens(rows, values, first, token, length, stride, head, dim, DIM: tl.constexpr):
    """The way back, rounded to the dtype of `rows`."""
    column = tl.arange(0, DIM)
    mask = (token < length)[:, None] & (column < dim)[None, :]
    place = (first + token)[:, None] * stride + head * dim + column[None, :]
    tl.store(rows + place, values.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def visible(query, key, length, CAUSAL: tl.constexpr):
    """Which keys a query sees; `query` and `key` broadcast to the block."""
    mask = (query < length) & (key < length)
    if CAUSAL:
        mask = mask & (key <= query)
    return mask


@triton.jit
def buckets_of(query, key, first, length, timestamps, edges):
    """Time buckets, exact whatever the precision of the logarithm: see `time_bucket_edges`."""
    query_s = tl.load(timestamps + first + query, mask=query < length, other=0)
    key_s = tl.load(timestamps + first + key, mask=key < length, other=0)
    distance_s = tl.maximum(tl.abs(query_s - key_s), 1)
    nearest_edge = (tl.log(distance_s.to(tl.float32)) / _BUCKET_WIDTH + 0.5).to(tl.int32)
    nearest_edge = tl.minimum(nearest_edge, LAST_BUCKET)
    return nearest_edge - (distance_s < tl.load(edges + nearest_edge)).to(tl.int32)


@triton.jit
def scores_of(
    rows, columns, query, key, mask, first, length, position_bias, time_bias, timestamps, edges,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`rows columns^T` plus the biases that there are."""
    scores = tl.dot(rows, tl.trans(columns), input_precision=PRECISION)
    if position_bias is not None:
        distance = tl.maximum(query - key, 0)
        scores += tl.load(position_bias + distance, mask=mask, other=0.0).to(tl.float32)
    if time_bias is not None:
        bucket = buckets_of(query, key, first, length, timestamps, edges)
        scores += tl.load(time_bias + bucket).to(tl.float32)
    return scores


@triton.jit
def weights_of(scores, mask):
    """SiLU, zero where nothing is seen; the division by the greatest length comes after all sums."""
    return tl.where(mask, scores * tl.sigmoid(scores), 0.0)


@triton.jit
def score_gradients(rows, columns, scores, mask, PRECISION: tl.constexpr):
    """`(rows columns^T) SiLU'(scores)`, of the output's gradient and the values in either order."""
    of_weights = tl.dot(rows, tl.trans(columns), input_precision=PRECISION)
    gate = tl.sigmoid(scores)
    return tl.where(mask, of_weights * gate * (1.0 + scores * (1.0 - gate)), 0.0)
