"""HSTU's attention by kernels, with its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch.nn import functional

from nestpipe.kernels.dispatch import launch
from nestpipe.kernels.hstu_attention.relative_bias import TokenTimes, time_bucket_edges
from nestpipe.kernels.hstu_attention.triton import BLOCK, NUM_STAGES, num_warps_of, width_of
from nestpipe.kernels.hstu_attention.triton.backward import key_value_gradient, query_gradient
from nestpipe.kernels.hstu_attention.triton.biases import NUM_BUCKET_SUMS, bias_gradient
from nestpipe.kernels.hstu_attention.triton.forward import forward
from nestpipe.kernels.padding import Padding


class HstuAttention(torch.autograd.Function):
    """Arguments as of the reference; differentiable once, by q, k, v and the biases."""

    @staticmethod
    def forward(
        context: Any,
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
        context.save_for_backward(q, k, v, position_bias, time_bias)
        context.others = padding, max_length, times, causal
        return _Kernels(q, k, v, position_bias, time_bias, *context.others).attended()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        kernels = _Kernels(*context.saved_tensors, *context.others)
        needs_q, needs_k, needs_v, _, _, needs_position, needs_time, *_ = context.needs_input_grad
        gradient = gradient.contiguous()
        of_q = kernels.query_gradient(gradient) if needs_q else None
        of_k, of_v = kernels.key_value_gradients(gradient) if needs_k or needs_v else (None, None)
        needs_biases = needs_position or needs_time
        of_position, of_time = kernels.bias_gradients(gradient) if needs_biases else (None, None)
        return of_q, of_k, of_v, None, None, of_position, of_time, None, None


@dataclass(frozen=True)
class _Kernels:
    """Launches the kernels of one call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    position_bias: torch.Tensor | None
    time_bias: torch.Tensor | None
    padding: Padding
    max_length: int
    times: TokenTimes | None
    causal: bool

    def attended(self) -> torch.Tensor:
        """[num_tokens, heads, value_dim]."""
        out = _contiguous_like(self.v)
        self._launch(forward, out)
        return out

    def query_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """As `q`."""
        of_queries = _contiguous_like(self.q)
        self._launch(query_gradient, of_queries, gradient=gradient)
        return of_queries

    def key_value_gradients(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `k` and `v`."""
        of_keys, of_values = _contiguous_like(self.k), _contiguous_like(self.v)
        self._launch(key_value_gradient, of_keys, of_values, gradient=gradient)
        return of_keys, of_values

    def bias_gradients(self, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """[max_length] and [129], for the biases that there are."""
        num_programs = len(self.padding.lengths) * self._num_blocks()
        of_positions = _partial_sums(self.position_bias, num_programs, self._num_blocks() * BLOCK)
        of_times = _partial_sums(self.time_bias, num_programs, NUM_BUCKET_SUMS)
        self._launch(bias_gradient, of_positions, of_times, gradient=gradient, joins_heads=True)
        return _total(of_positions, self.position_bias), _total(of_times, self.time_bias)

    def _launch(
        self,
        kernel: Any,
        *outputs: torch.Tensor | None,
        gradient: torch.Tensor | None = None,
        joins_heads: bool = False,
    ) -> None:
        num_heads, dim, value_dim = self.q.shape[1], self.q.shape[2], self.v.shape[2]
        if not self.v.numel():
            return
        num_rows = len(self.padding.lengths) * (1 if joins_heads else num_heads)
        times = None if self.time_bias is None else self.times
        launch(
            kernel,
            (num_rows, self._num_blocks()),
            self.q,
            self.k,
            self.v,
            *(() if gradient is None else (gradient,)),
            self.padding.offsets,
            self.position_bias,
            self.time_bias,
            None if times is None else times.timestamps_s,
            None if times is None else time_bucket_edges(self.q.device),
            *outputs,
            self.q.stride(0),
            self.k.stride(0),
            self.v.stride(0),
            num_heads,
            self.max_length,
            dim,
            value_dim,
            CAUSAL=self.causal,
            DIM=width_of(dim),
            VALUE_DIM=width_of(value_dim),
            BLOCK=BLOCK,
            PRECISION=_precision(self.q.dtype),
            num_warps=num_warps_of(kernel, self.q.element_size()),
            num_stages=NUM_STAGES,
        )

    def _num_blocks(self) -> int:
        return int(triton.cdiv(self.padding.width, BLOCK))


def _contiguous_like(tokens: torch.Tensor) -> torch.Tensor:
    return torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)


def _partial_sums(bias: torch.Tensor | None, num_programs: int, num: int) -> torch.Tensor | None:
    """Zeros [num_programs, num]: programs of absent queries write nothing."""
    return None if bias is None else torch.zeros(num_programs, num, dtype=torch.float32, device=bias.device)


def _total(partial_sums: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    if partial_sums is None or bias is None:
        return None
    total = partial_sums.sum(dim=0, dtype=torch.float64)[: len(bias)]
    return functional.pad(total, (0, len(bias) - len(total))).to(bias.dtype)


def _precision(dtype: torch.dtype) -> str:
    """As exact as torch's own products of this dtype are."""
    is_exact = dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest"
    return "ieee" if is_exact else "tf32"
