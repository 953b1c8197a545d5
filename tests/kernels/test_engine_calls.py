"""The engine and the backbones go through the ops: the calls of a training step, counted."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nestpipe import NestPipe, RowWiseAdagrad, kernels, schedules
from workloads import registry

OPS = sorted(found.name for found in pkgutil.iter_modules(kernels.__path__) if found.ispkg)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each op has chosen an implementation."""
    counter: Counter[str] = Counter()

    def counting(op: str, choose: Callable[..., bool]) -> Callable[..., bool]:
        def counted(*arguments: Any, **named: Any) -> bool:
            counter[op] += 1
            return choose(*arguments, **named)

        return counted

    for op in OPS:
        module = importlib.import_module(f"nestpipe.kernels.{op}")
        monkeypatch.setattr(module, "uses_triton", counting(op, module.uses_triton))
    return counter


def calls_a_step(calls: Counter[str], settings: dict[str, str], name: str, cache: Path) -> dict[str, int]:
    """Calls of one steady step in two micro-batches on one worker."""
    workload = registry.create(name, settings, seed=0, num_workers=1, cache_dir=cache)
    pipeline = NestPipe(
        workload.model(torch.device("cpu")),
        sparse_optimizer=RowWiseAdagrad(0.02),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        schedule=schedules.nestpipe(2),
    )
    with pipeline:
        batches = workload.batches(rank=0, num_workers=1)
        for _ in range(3):
            pipeline.progress(batches)
        pipeline.drain()
        before = Counter(calls)
        for _ in range(4):
            pipeline.progress(batches)
        pipeline.drain()
    return {op: (calls[op] - before[op]) // 4 for op in OPS if calls[op] > before[op]}


# One row space, rows and one state: retrieve reads 2, sync and write-back copy 2 each; the rest is a
# micro-batch's: rows sent, rows spread, gradients added. One worker owns every key.
COMMON = {"gather": 2 + 2, "copy_rows": 2 + 2, "scatter_add": 2, "row_update": 1, "bucketize": 1}


def test_calls_of_a_pooled_step(calls: Counter[str], tmp_path: Path) -> None:
    found = calls_a_step(calls, {"preset": "tiny"}, "synthetic", tmp_path)
    assert found == {**COMMON, "expand": 2, "pool": 2}


def test_calls_of_a_step_with_bags(calls: Counter[str], tmp_path: Path) -> None:
    found = calls_a_step(calls, {"preset": "tiny", "model": "dlrm"}, "synthetic", tmp_path)
    assert found == {**COMMON, "pool": 2}


def test_calls_of_an_attention_step(calls: Counter[str], tmp_path: Path) -> None:
    settings = {
        "model": "hstu",
        "num_items": "1000",
        "batch_size": "8",
        "max_length": "16",
        "num_blocks": "3",
    }
    found = calls_a_step(calls, settings, "industrial", tmp_path)
    assert found["hstu_attention"] == 3 * 2
    assert found["expand"] >= 2
    assert set(COMMON) <= set(found)
