"""Which implementation runs: `auto` never interprets, `triton` never falls back in silence."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import triton

from nestpipe.kernels import dispatch
from nestpipe.kernels.dispatch import launch, uses_triton

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


def test_kernels_are_launched_one_at_a_time() -> None:
    """Triton hands out a kernel that another thread is still loading."""
    under_way = most_at_once = 0
    all_there = threading.Barrier(4)

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return self.load

        def load(self, *arguments: int, scale: int) -> None:
            nonlocal under_way, most_at_once
            assert (arguments, scale) == ((1, 2), 3)
            under_way += 1
            most_at_once = max(most_at_once, under_way)
            time.sleep(0.01)  # loading lets other threads run
            under_way -= 1

    def call() -> None:
        all_there.wait(timeout=10)
        launch(Kernel(), (1,), 1, 2, scale=3)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(call) for _ in range(4)]:
            done.result(timeout=10)
    assert (most_at_once, under_way) == (1, 0)


def test_every_kernel_is_launched_that_way(repository: Path) -> None:
    found = [
        f"{path.relative_to(repository)}: {ast.unparse(node)}"
        for path in (repository / "nestpipe" / "kernels").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    ]
    assert found == ["nestpipe/kernels/dispatch.py: kernel[grid](*arguments, **options)"]


def test_unknown_impl() -> None:
    with pytest.raises(ValueError, match="auto, reference, triton"):
        uses_triton("fast", CPU)  # type: ignore[arg-type]
