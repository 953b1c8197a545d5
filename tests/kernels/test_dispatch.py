"""Which implementation runs: `auto` never interprets, `triton` never falls back in silence."""

from __future__ import annotations

import pytest
import torch
import triton

from nestpipe.kernels.dispatch import uses_triton

CPU = torch.device("cpu")


def test_auto_never_picks_the_interpreter() -> None:
    assert triton.knobs.runtime.interpret or torch.cuda.is_available()
    assert not uses_triton("auto", CPU)


def test_triton_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(RuntimeError, match="need a CUDA device, the tensors are on cpu"):
        uses_triton("triton", CPU)


def test_unknown_impl() -> None:
    with pytest.raises(ValueError, match="auto, reference, triton"):
        uses_triton("fast", CPU)  # type: ignore[arg-type]
