"""What training launches has been launched before the lanes start: no kernel is loaded while ranks wait."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nestpipe import SGD, Adagrad, Adam, RowWiseAdagrad, kernels, lr, schedules
from nestpipe.kernels import dispatch
from nestpipe.optim import SparseOptimizer
from nestpipe.schedule import Schedule
from nestpipe.warm_up import NUMS_OF_ROWS
from tests.distributed import run_workers
from tests.kernels.interpreter import interpreted
from tests.nestpipe.fake_accelerator import stand_in
from tests.nestpipe.models import Data
from tests.nestpipe.training import build, step_until_stop

Launch = tuple[Any, ...]
"""What a kernel is compiled for: its name, the type of each argument and its options."""


def _modules() -> list[Any]:
    """Every module of kernels that launches any."""
    found = pkgutil.walk_packages(kernels.__path__, "nestpipe.kernels.")
    modules = [importlib.import_module(name) for _, name, _ in found]
    return [module for module in modules if hasattr(module, "launch") and module is not dispatch]


def _kind(argument: Any) -> str:
    return str(argument.dtype) if isinstance(argument, torch.Tensor) else type(argument).__name__


def _recording(launches: set[Launch], original: Callable[..., None]) -> Callable[..., None]:
    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        launches.add((kernel.__name__, *map(_kind, arguments), *sorted(map(str, options.items()))))
        # Of more rows than the model has: nobody looks at the result, and the interpreter is slow.
        if not any(isinstance(a, torch.Tensor) and len(a) >= max(NUMS_OF_ROWS) for a in arguments):
            original(kernel, grid, *arguments, **options)

    return launch


def _train(
    rank: int, num_workers: int, schedule: Schedule, optimizer: SparseOptimizer, dtype: torch.dtype
) -> tuple[set[Launch], set[Launch]]:
    """Launches of construction and of training, interpreted, on a fake accelerator."""
    data = Data(dtype=dtype)
    at_start: set[Launch] = set()
    launches: set[Launch] = set()
    # A worker is forked from a server that knows nothing of this folder's fixtures.
    with interpreted(), pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        patch.setattr(dispatch, "why_not", lambda device: "")
        patch.setattr(dispatch, "is_interpreted", lambda: False)
        for module in _modules():
            patch.setattr(module, "launch", _recording(launches, module.launch))
        factor = lr.WarmupLinear(1, 3)  # ends at a learning rate of 0
        with build(data, schedule, optimizer, sparse_lr_factor=factor) as pipeline:
            at_start |= launches
            launches.clear()
            step_until_stop(pipeline, data.batches(rank, num_workers, 4))
    return at_start, launches


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, whose own test follows")
@pytest.mark.parametrize(
    ("num_workers", "schedule", "optimizer", "dtype"),
    [
        (1, schedules.nestpipe(2), RowWiseAdagrad(0.05), torch.float32),
        (2, schedules.nestpipe(2), Adam(0.05, weight_decay=0.1), torch.float32),
        (2, schedules.uniemb(), Adagrad(0.05), torch.bfloat16),
        (2, schedules.sync(), SGD(0.05, weight_decay=0.1), torch.float64),
    ],
    ids=["alone", "nestpipe", "uniemb", "sync"],
)
def test_training_launches_what_was_launched_before(
    num_workers: int, schedule: Schedule, optimizer: SparseOptimizer, dtype: torch.dtype
) -> None:
    results = run_workers(_train, num_workers, schedule, optimizer, dtype, timeout_s=120)
    for at_start, in_training in results:
        assert len(in_training) > 10
        assert in_training - at_start == set()
        # Also what this small model's batches do not come to.
        kinds = {launch[:3] for launch in at_start if launch[0] == "_add_in_order"}
        assert {kind[2] for kind in kinds} == {"torch.int16", "torch.int32"}
        assert "add_blocks" in {launch[0] for launch in at_start}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_training_compiles_nothing_on_a_gpu() -> None:
    from triton.runtime.jit import JITFunction

    jitted = {
        id(value): value
        for module in _modules()
        for value in vars(module).values()
        if isinstance(value, JITFunction)
    }

    def num_compiled() -> int:
        return sum(len(cache[0]) for kernel in jitted.values() for cache in kernel.device_caches.values())

    data = Data(dtype=torch.float32)
    with build(data, schedules.nestpipe(2), RowWiseAdagrad(0.05), device="cuda") as pipeline:
        before = num_compiled()
        step_until_stop(pipeline, data.batches(0, 1, 4))
        assert num_compiled() == before > 0
