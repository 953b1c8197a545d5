"""Which implementation runs: `auto` never interprets, `triton` never falls back in silence."""

from __future__ import annotations

import pytest
import torch
import triton

from nestpipe.kernels import dispatch
from nestpipe.kernels.dispatch import uses_triton

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_auto_never_picks_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton.knobs.runtime.interpret or torch.cuda.is_available()
    assert not uses_triton("auto", CPU)
    monkeypatch.setattr(dispatch, "why_not", lambda device: "")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert not uses_triton("auto", CUDA)
    assert uses_triton("triton", CUDA)  # asked for by name, as a debugger of kernels does
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    assert uses_triton("auto", CUDA)


def test_triton_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(RuntimeError, match="need a CUDA device, the tensors are on cpu"):
        uses_triton("triton", CPU)


def test_unknown_impl() -> None:
    with pytest.raises(ValueError, match="auto, reference, triton"):
        uses_triton("fast", CPU)  # type: ignore[arg-type]
