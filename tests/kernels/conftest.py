"""Kernels on a GPU where there is one, elsewhere in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.interpreter import interpreted


@pytest.fixture(scope="module", autouse=True)
def interpreter() -> Iterator[None]:
    """Without a GPU, kernels that a test of this folder imports are interpreted."""
    with interpreted():
        yield


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where the tensors of a kernel's test lie."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
