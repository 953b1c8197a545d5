"""HSTU's attention as Triton kernels: a block of queries x keys lives in registers, is used and forgotten.

Backward computes the blocks again: once for the gradient of queries, once for those of keys and values, and
once for those of the biases. This module says how the kernels are specialised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nestpipe.kernels.aot import Variant
from nestpipe.kernels.hstu_attention.triton.backward import key_value_gradient, query_gradient
from nestpipe.kernels.hstu_attention.triton.biases import bias_gradient
from nestpipe.kernels.hstu_attention.triton.forward import forward

BLOCK = 32
"""Tokens of a block: with 64, registers spill on some architecture in every kernel of the backward pass."""
NUM_STAGES = 2
_KERNELS = (forward, query_gradient, key_value_gradient, bias_gradient)
_AOT_DIM = 64


def num_warps_of(kernel: Any, itemsize: int) -> int:
    """The fewest that do not spill, for elements of `itemsize` bytes."""
    return 8 if itemsize > 2 or kernel is bias_gradient else 4


def width_of(dim: int) -> int:
    """The columns that hold `dim` elements: a power of two, and what a matrix unit takes."""
    return max(16, 1 << max(dim - 1, 0).bit_length())


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time: each kernel with both biases, in bfloat16, heads of 64 elements."""
    return map(_variant, _KERNELS)


def _variant(kernel: Any) -> Variant:
    outputs = {name for name in kernel.arg_names if name == "out" or name.startswith("of_")}
    sums = {"position_bias", "time_bias"} | (outputs if kernel is bias_gradient else set())
    types = {
        **dict.fromkeys({"q", "k", "v", "gradient"} | outputs, "*bf16"),
        **dict.fromkeys(sums, "*fp32"),
        **dict.fromkeys(("offsets", "timestamps", "edges"), "*i64"),
        **dict.fromkeys(("q_stride", "k_stride", "v_stride", "num_heads", "max_length"), "i32"),
        **dict.fromkeys(("dim", "value_dim"), "i32"),
    }
    signature = {name: types[name] for name in kernel.arg_names if name in types}
    return Variant(
        op="hstu_attention",
        name=f"{kernel.__name__}-bf16",
        kernel=kernel,
        signature=signature,
        constexprs={
            "CAUSAL": True,
            "DIM": _AOT_DIM,
            "VALUE_DIM": _AOT_DIM,
            "BLOCK": BLOCK,
            "PRECISION": "ieee",
        },
        aligned=tuple(name for name in signature if name not in ("num_heads", "max_length")),
        num_warps=num_warps_of(kernel, 2),
        num_stages=NUM_STAGES,
        is_memory_bound=False,
        moves_rows=kernel is not bias_gradient,
    )
