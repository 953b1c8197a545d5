"""HSTU's attention: both versions against the formula in float64, gradients by name, at awkward lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from nestpipe.kernels.hstu_attention import hstu_attention
from nestpipe.kernels.hstu_attention.relative_bias import (
    NUM_TIME_BUCKETS,
    TokenTimes,
    bias_of,
    time_bucket_edges,
    time_buckets,
)
from nestpipe.kernels.padding import Padding
from tests.kernels.rows import BACKWARD, DTYPES, FORWARD, assert_near_truth, huge_rows, random_rows

NAMES = ("q", "k", "v", "position_bias", "time_bias")
DIM, VALUE_DIM = 20, 24
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter keeps bfloat16 as integers and multiplies those: let it convert them first."""
    if not triton.knobs.runtime.interpret:
        return
    original = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        a, b = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return original(self, a, b, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@pytest.fixture(autouse=True)
def poisoned_outputs(interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel does not write is NaN."""
    from nestpipe.kernels.hstu_attention import function

    monkeypatch.setattr(function, "_contiguous_like", lambda tokens: torch.full_like(tokens, float("nan")))


class Case:
    """Random inputs for samples of some lengths; `max_length` is more than the longest."""

    def __init__(
        self, lengths: tuple[int, ...], device: torch.device, heads: int = 2, causal: bool = True
    ) -> None:
        self.lengths, self.causal, self.heads = lengths, causal, heads
        num_tokens = sum(lengths)
        self.max_length = max(lengths, default=0) + 7
        self.padding = Padding.of(torch.tensor(lengths, dtype=torch.int64, device=device), num_tokens)
        gaps = torch.randint(50_000, (num_tokens,), generator=torch.Generator().manual_seed(5))
        gaps[::5] = 0
        self.seconds = 1_600_000_000 + gaps.cumsum(0)
        self.times = TokenTimes(self.seconds.to(device), self.padding)
        self.device = device

    def inputs(self, dtype: torch.dtype) -> Tensors:
        # Tokens that lie apart, as parts of one projection do.
        projection = random_rows(sum(self.lengths), self.heads * (2 * DIM + VALUE_DIM), dtype)
        widths = [self.heads * DIM, self.heads * DIM, self.heads * VALUE_DIM]
        parts = [part.unflatten(1, (self.heads, -1)) for part in projection.to(self.device).split(widths, 1)]
        biases = random_rows(1, self.max_length + NUM_TIME_BUCKETS, dtype, seed=1)[0].to(self.device)
        return dict(zip(NAMES, [*parts, *biases.split([self.max_length, NUM_TIME_BUCKETS])], strict=True))

    def gradient(self, dtype: torch.dtype) -> torch.Tensor:
        gradient = random_rows(sum(self.lengths), self.heads * VALUE_DIM, dtype, seed=2)
        return gradient.unflatten(1, (self.heads, VALUE_DIM)).to(self.device)

    def attend(self, inputs: Tensors, impl: Any) -> torch.Tensor:
        times = self.times if "time_bias" in inputs else None
        return hstu_attention(
            **inputs,
            padding=self.padding,
            max_length=self.max_length,
            times=times,
            causal=self.causal,
            impl=impl,
        )

    def formula(self, inputs: Tensors) -> torch.Tensor:
        """Sample by sample, from the published equations, in float64."""
        attended, first = [], 0
        for length in self.lengths:
            own = slice(first, first + length)
            q, k, v = (inputs[name][own].double().transpose(0, 1) for name in ("q", "k", "v"))
            scores = q @ k.transpose(1, 2)
            if "position_bias" in inputs:
                distance = torch.tensor(
                    [[max(i - j, 0) for j in range(length)] for i in range(length)]
                ).long()
                scores = scores + inputs["position_bias"].double()[distance.view(length, length)]
            if "time_bias" in inputs:
                t = self.seconds[own].tolist()
                bucket = torch.tensor([[published_bucket(a - b) for b in t] for a in t]).long()
                scores = scores + inputs["time_bias"].double()[bucket.view(length, length)]
            weights = scores / (1 + torch.exp(-scores)) / self.max_length
            attended.append(((weights.tril() if self.causal else weights) @ v).transpose(0, 1))
            first += length
        return torch.cat([*attended, inputs["v"][:0].double()])


def published_bucket(seconds: int) -> int:
    return min(math.floor(math.log(max(abs(seconds), 1)) / 0.301), 128)


def results(case: Case, inputs: Tensors, impl: str | None) -> Tensors:
    """Output and gradients by name, of the formula where `impl` is None."""
    dtype = torch.float64 if impl is None else inputs["q"].dtype
    leaves = {name: x.to(dtype).detach().requires_grad_() for name, x in inputs.items()}
    out = case.formula(leaves) if impl is None else case.attend(leaves, impl)
    out.backward(case.gradient(inputs["q"].dtype).to(dtype))
    gradients = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
    return {"out": out.detach(), **gradients}


def check(case: Case, inputs: Tensors) -> None:
    truth, plain, found = (results(case, inputs, impl) for impl in (None, "reference", "triton"))
    for name in truth:
        factor = FORWARD if name == "out" else BACKWARD
        try:
            assert_near_truth(found[name], plain[name], truth[name], factor)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("dtype", DTYPES)
def test_output_and_every_gradient(dtype: torch.dtype, device: torch.device) -> None:
    case = Case((0, 1, 63, 65), device)
    check(case, case.inputs(dtype))


@pytest.mark.parametrize("lengths", [(), (0, 0), (33, 2)])
@pytest.mark.parametrize("names", [(), ("position_bias",), ("time_bias",), ("position_bias", "time_bias")])
@pytest.mark.parametrize("causal", [True, False])
def test_biases_left_out_and_keys_ahead(
    lengths: tuple[int, ...], names: tuple[str, ...], causal: bool, device: torch.device
) -> None:
    case = Case(lengths, device, heads=1, causal=causal)
    inputs = case.inputs(torch.float32)
    check(case, {name: x for name, x in inputs.items() if name in ("q", "k", "v", *names)})


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_a_token_changes_nothing_before_it_nor_in_other_samples(impl: str, device: torch.device) -> None:
    case = Case((40, 35), device, heads=1)
    inputs = case.inputs(torch.float32)
    before = case.attend(inputs, impl)
    changed = {name: x.clone() for name, x in inputs.items()}
    for name in ("q", "k", "v"):
        changed[name][36] += 1.0
    after = case.attend(changed, impl)
    is_same = (before == after).flatten(1).all(1)
    assert is_same[:36].all()
    assert not is_same[36:40].any()
    assert is_same[40:].all()


@pytest.fixture
def edges() -> torch.Tensor:
    return time_bucket_edges(torch.device("cpu"))


def test_edges_of_the_time_buckets(edges: torch.Tensor) -> None:
    buckets = torch.arange(NUM_TIME_BUCKETS)
    times = torch.stack([torch.zeros_like(edges), edges, edges - 1], dim=1)
    of_edges, before = time_buckets(times)[:, 0, 1:].unbind(1)
    assert (of_edges >= buckets).all()
    assert (before[1:] < buckets[1:]).all()


def test_time_buckets_are_the_published_ones() -> None:
    distances = [0, 1, 2, 59, 60, 3_600, 86_400, 10**9, 2**62]
    buckets = time_buckets(torch.tensor([[0, distance] for distance in distances]))[:, 1, 0].tolist()
    assert buckets == [published_bucket(distance) for distance in distances]


def test_kernel_has_the_time_buckets_of_the_reference(edges: torch.Tensor, device: torch.device) -> None:
    """With no scores but the time's and the unit matrix as values, a weight is its bucket's."""
    seconds = torch.cat([torch.zeros(1).long(), edges[3::2], edges[3::2] - 1])
    num = len(seconds)
    padding = Padding.of(torch.tensor([num], device=device), num)
    nothing, one = torch.zeros(num, 1, 16, device=device), torch.eye(num, device=device).unsqueeze(1)
    bias = torch.linspace(1, 2, NUM_TIME_BUCKETS, device=device)
    times = TokenTimes(seconds.to(device), padding)
    weights = hstu_attention(
        nothing,
        nothing,
        one,
        padding,
        max_length=num,
        time_bias=bias,
        times=times,
        causal=False,
        impl="triton",
    )
    by_bucket = bias * torch.sigmoid(bias) / num
    torch.testing.assert_close(weights.squeeze(1), by_bucket[times.buckets[0]], rtol=1e-5, atol=0)


def test_gradient_of_the_bias_lookup() -> None:
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True)
    buckets = torch.tensor([[0, 6, 6], [3, 3, 3]])
    assert torch.autograd.gradcheck(lambda b: bias_of(b, buckets), (bias,))


def test_addresses_beyond_32_bits(device: torch.device) -> None:
    far = huge_rows(device).flatten().as_strided((3, 1, 16), (2**30, 16, 1))
    far.copy_(random_rows(3, 16, torch.float16).unsqueeze(1))
    padding, near = Padding.of(torch.tensor([3], device=device), 3), far.contiguous()
    found = hstu_attention(far, far, far, padding, max_length=3, impl="triton")
    assert torch.equal(found, hstu_attention(near, near, near, padding, max_length=3, impl="triton"))


def bad_inputs() -> Iterator[tuple[dict[str, Any], type[Exception], str]]:
    tokens = torch.zeros(3, 2, 16)
    yield {"k": tokens[:2]}, ValueError, r"k must be \[num_tokens, heads, dim\] with 3 tokens"
    yield {"k": tokens.double()}, TypeError, "one floating-point dtype, got torch.float32, k torch.float64"
    yield {"v": torch.zeros(3, 16, 2).transpose(1, 2)}, ValueError, "heads of a token of v must be contiguous"
    yield {"k": torch.zeros(3, 2, 8)}, ValueError, "k must have the shape of q"
    yield {"max_length": 2}, ValueError, "a sample has 3 tokens, more than max_length=2"
    yield (
        {"position_bias": torch.zeros(4)},
        ValueError,
        r"position_bias must be a floating-point vector \[3\]",
    )
    yield {"time_bias": torch.zeros(129)}, ValueError, "time_bias needs times"
    yield dict.fromkeys("qkv", tokens.double()), ValueError, "float64 has no Triton kernel"
    yield dict.fromkeys("qkv", torch.zeros(3, 2, 129)), ValueError, "heads of 129 elements"


@pytest.mark.parametrize(("change", "error", "message"), list(bad_inputs()))
def test_bad_input_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    tokens, padding = torch.zeros(3, 2, 16), Padding.of(torch.tensor([3]), 3)
    arguments = {"q": tokens, "k": tokens, "v": tokens, "padding": padding, "max_length": 3, "impl": "triton"}
    with pytest.raises(error, match=message):
        hstu_attention(**{**arguments, **change})
