"""Triton's interpreter, for kernels that are imported while it is on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


@contextmanager
def interpreted() -> Iterator[None]:
    """Kernels imported inside are interpreted where there is no GPU.

    Triton keeps the choice in the environment, which processes started meanwhile inherit.
    """
    with triton.knobs.runtime.scope(), pytest.MonkeyPatch.context() as patch:
        triton.knobs.runtime.interpret = not torch.cuda.is_available()
        if triton.knobs.runtime.interpret:
            _interpret_standard_library(patch)
        yield


def _interpret_standard_library(patch: pytest.MonkeyPatch) -> None:
    """`tl.sum` and the like are themselves in Triton, and compiled since something imported it before."""
    functions: dict[int, InterpretedFunction] = {}
    for module in (tl.standard, tl):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                one = functions.setdefault(id(value), InterpretedFunction(value.fn))
                patch.setattr(module, name, one)
