"""What a worker does around its work: the device that it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.options import Training
from harness.process import _device

ON_CUDA = replace(Training(), device="cuda")


def device_of(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, num_devices: int, launcher: str = "torchrun"
) -> torch.device:
    """What a worker takes, and has made current, on a machine with so many GPUs."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if launcher == "torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "any")
    device = _device(ON_CUDA)
    assert current == [device]
    return device


def test_workers_of_a_machine_take_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        for launcher in ("torchrun", "srun"):
            assert device_of(monkeypatch, rank, 2, launcher) == torch.device("cuda", rank)


def test_a_task_that_sees_its_own_gpu_alone_takes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm hands them out with a GPU a task."""
    assert device_of(monkeypatch, 3, 1, "srun") == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("num_devices", "launcher"), [(1, "torchrun"), (2, "torchrun"), (2, "srun"), (0, "srun")]
)
def test_more_workers_than_gpus_is_an_error(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, launcher: str
) -> None:
    with pytest.raises(ValueError, match=rf"worker 2 of this machine has no GPU: torch sees {num_devices}; "):
        device_of(monkeypatch, 2, num_devices, launcher)


def test_a_cpu_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "set_device")
    assert _device(Training()) == torch.device("cpu")
