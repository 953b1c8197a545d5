"""Which implementation of an op runs, and errors that say why one cannot."""

from __future__ import annotations

import importlib.util
import threading
from functools import cache
from typing import Any, Literal

import torch

Impl = Literal["auto", "reference", "triton"]
IMPLS: tuple[Impl, ...] = ("auto", "reference", "triton")
MIN_CAPABILITY = (8, 0)

_LAUNCHING = threading.Lock()
"""Triton loads a kernel when it is first launched, and a thread that launches it meanwhile gets one that is
half loaded. Its kernels are the process's, and so is this."""


def uses_triton(impl: Impl, device: torch.device) -> bool:
    """Whether the Triton kernel runs for tensors on `device`.

    `auto` takes it on an accelerator that Triton compiles for, never in Triton's interpreter. `triton`
    where it cannot run is a RuntimeError that says why, and another name a ValueError.
    """
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    if impl == "reference":
        return False
    reason = why_not(device)
    if impl == "auto":
        return not reason and not is_interpreted()
    if reason and not is_interpreted():
        raise RuntimeError(f'impl="triton" cannot run on {device}: {reason}')
    return True


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a Triton kernel, from any lane's thread."""
    with _LAUNCHING:
        kernel[grid](*arguments, **options)


def why_not(device: torch.device) -> str:
    """Why Triton kernels do not run on `device`, "" where they do."""
    if device.type != "cuda":
        return f"Triton kernels need a CUDA device, the tensors are on {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return _unsupported(device.index or 0)


def is_interpreted() -> bool:
    """Whether Triton kernels imported from now on run in its interpreter, on the CPU."""
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


@cache
def _unsupported(index: int) -> str:
    if torch.version.hip:
        return "the kernels are written for NVIDIA GPUs, this is a ROCm build"
    capability = torch.cuda.get_device_capability(index)
    if capability < MIN_CAPABILITY:
        name = ".".join(map(str, capability))
        return f"compute capability {name} is below {'.'.join(map(str, MIN_CAPABILITY))}"
    return ""
