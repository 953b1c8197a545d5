"""Kernels on a GPU where there is one, elsewhere in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


@pytest.fixture(scope="module", autouse=True)
def interpreter() -> Iterator[None]:
    """Without a GPU, kernels that a test of this folder imports are interpreted.

    Triton keeps the choice in the environment, which processes started meanwhile inherit.
    """
    with triton.knobs.runtime.scope(), pytest.MonkeyPatch.context() as patch:
        triton.knobs.runtime.interpret = not torch.cuda.is_available()
        if triton.knobs.runtime.interpret:
            _interpret_standard_library(patch)
        yield


def _interpret_standard_library(patch: pytest.MonkeyPatch) -> None:
    """`tl.sum` and the like are themselves in Triton, and compiled since something imported it before."""
    interpreted: dict[int, InterpretedFunction] = {}
    for module in (tl.standard, tl):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                one = interpreted.setdefault(id(value), InterpretedFunction(value.fn))
                patch.setattr(module, name, one)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tensors of a kernel's test lie."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
