"""What a worker does around its work: the device that it takes."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace

import pytest
import torch

from harness import process
from harness.options import Training
from harness.process import _device

ON_CUDA = replace(Training(), device="cuda")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in process._FOR_SEVERAL_GPUS:
        os.environ.pop(name, None)


def device_of(
    monkeypatch: pytest.MonkeyPatch,
    local_rank: int,
    num_devices: int,
    num_workers: int = 2,
    launched_here: bool = True,
) -> torch.device:
    """What a worker takes, and has made current, on a machine with so many GPUs."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if launched_here else None)
    os.environ.update(LOCAL_RANK=str(local_rank), WORLD_SIZE=str(num_workers))
    device = _device(ON_CUDA)
    assert current == [device]
    return device


def test_workers_of_a_machine_take_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device_of(monkeypatch, rank, 2) for rank in range(2)] == [
        torch.device("cuda", 0),
        torch.device("cuda", 1),
    ]


def test_a_task_that_sees_its_own_gpu_alone_takes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm hands them out with a GPU a task."""
    assert device_of(monkeypatch, 3, 1, num_workers=8, launched_here=False) == torch.device("cuda", 0)


@pytest.mark.parametrize(("num_devices", "launched_here"), [(1, True), (2, True), (2, False), (0, False)])
def test_more_workers_than_gpus_is_an_error(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, launched_here: bool
) -> None:
    with pytest.raises(ValueError, match=rf"worker 2 of this machine has no GPU: torch sees {num_devices}; "):
        device_of(monkeypatch, 2, num_devices, num_workers=3, launched_here=launched_here)


def test_several_gpus_load_kernels_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    device_of(monkeypatch, 0, 1, num_workers=1)
    assert not process._FOR_SEVERAL_GPUS.keys() & os.environ.keys()
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "16"  # as the user wants it
    device_of(monkeypatch, 0, 2)
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "16"


def test_a_cpu_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "set_device")
    assert _device(Training()) == torch.device("cpu")
