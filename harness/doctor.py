"""What runs on this machine, and why the rest does not."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from packaging.requirements import Requirement

from nestpipe.kernels.copy_rows import copy_rows
from nestpipe.kernels.dispatch import is_interpreted, why_not

Status = Literal["runs", "differs", "absent", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing that runs, is not as pinned, is not there, or should run and does not."""

    topic: str
    subject: str
    status: Status
    detail: str


def examine(locks: Path | None = None) -> list[Finding]:
    """Everything that the project can use; `locks` is the folder of pins, without: the checkout's own."""
    folder = Path(__file__).parents[1] / "requirements" if locks is None else locks
    return [
        *_requirements(),
        *_pins(folder),
        *_libraries(),
        *_devices(),
        *_kernels(),
        *_groups(),
        *_methods(),
    ]


def _requirements() -> Iterator[Finding]:
    """What the package declares, against what is installed."""
    try:
        declared = requires("nestpipe") or []
    except PackageNotFoundError:
        yield Finding("packages", "nestpipe", "broken", "not installed: pip install -e . in the checkout")
        return
    wanted = [Requirement(text) for text in declared]
    unmet = [text for need in wanted if _applies(need) and (text := _unmet(need))]
    for text in unmet:
        yield Finding("packages", "requirements", "broken", text)
    if not unmet:
        yield Finding("packages", "requirements", "runs", "every declared one is met")


def _applies(need: Requirement) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": ""})


def _unmet(need: Requirement) -> str:
    try:
        found = version(need.name)
    except PackageNotFoundError:
        return f"{need} is not installed"
    fits = need.specifier.contains(found.partition("+")[0], prereleases=True)
    return "" if fits else f"{need} is required, {found} is installed"


def _pins(folder: Path) -> Iterator[Finding]:
    """The lock that the measurements were made with; other versions run too, with other numbers."""
    lock = folder / ("cpu.txt" if _is_installed("fbgemm-gpu-cpu") else "cuda.txt")
    if not lock.is_file():
        yield Finding("packages", "pins", "absent", "no lock file: this is no checkout")
        return
    lines = [line.partition("#")[0].strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    pins = [line.split("==") for line in lines if line]
    differing = []
    for name, pinned in pins:
        found = version(name).partition("+")[0] if _is_installed(name) else "absent"
        if found != pinned:
            differing.append(f"{name} {found} instead of {pinned}")
    if differing:
        yield Finding("packages", f"pins of {lock.name}", "differs", "; ".join(differing))
    else:
        yield Finding("packages", f"pins of {lock.name}", "runs", f"all {len(pins)} as pinned")


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _libraries() -> Iterator[Finding]:
    for module in ("torchrec", "fbgemm_gpu"):
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a broken build raises
            yield Finding("libraries", module, "broken", f"cannot be imported: {_short(error)}")
        else:
            yield Finding("libraries", module, "runs", _fbgemm_build() if module == "fbgemm_gpu" else "")


def _fbgemm_build() -> str:
    if _is_installed("fbgemm-gpu-cpu"):
        return "built for CPUs: TorchRec's methods run on the CPU only"
    return "" if torch.version.cuda else "built for CUDA beside a torch for CPUs"


def _devices() -> Iterator[Finding]:
    yield Finding("devices", "cpu", "runs", f"{torch.get_num_threads()} threads")
    if not torch.accelerator.is_available():
        is_cpu_build = not (torch.version.cuda or torch.version.hip)
        reason = f"torch {torch.__version__} is built for CPUs" if is_cpu_build else "torch finds no device"
        yield Finding("devices", "accelerator", "absent", reason)
        return
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    for index in range(torch.accelerator.device_count()):
        yield Finding("devices", f"{kind.type}:{index}", "runs", _described(torch.device(kind.type, index)))


def _described(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    return f"{properties.name}, {properties.total_memory >> 30} GiB, compute capability {capability}"


def _kernels() -> Iterator[Finding]:
    yield Finding("kernels", "reference", "runs", "plain torch, on every device")
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    reason = why_not(torch.device("cpu") if present is None else present)
    if present is None:
        reason = "Triton kernels need a CUDA device, and there is none"
    if reason and is_interpreted():
        reason += "; Triton's interpreter is on, which is for tests"
    if reason or present is None:
        yield Finding("kernels", "triton", "absent", reason)
    elif problem := _problem_of_a_launch(present):
        yield Finding("kernels", "triton", "broken", problem)
    else:
        yield Finding("kernels", "triton", "runs", version("triton"))


def _problem_of_a_launch(device: torch.device) -> str:
    """Why a kernel that may run does not; the first launch builds code, with a compiler of the system."""
    row, position = torch.ones(1, 4, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    target = torch.zeros_like(row)
    try:
        copy_rows(row, position, target, position, impl="triton")
        return "" if torch.equal(row, target) else "a row that was copied came out otherwise"
    except Exception as error:  # whatever a compiler or a driver raises
        return f"the first kernel fails: {_short(error)}"


def _groups() -> Iterator[Finding]:
    if dist.is_available() and dist.is_gloo_available():
        yield Finding("process groups", "gloo", "runs", "collectives on the host")
    else:
        yield Finding("process groups", "gloo", "broken", "this torch has no gloo: only one worker can train")
    if not (dist.is_available() and dist.is_nccl_available()):
        yield Finding("process groups", "nccl", "absent", "this torch has no NCCL: one accelerator at most")
        return
    found = ".".join(map(str, torch.cuda.nccl.version()))
    yield Finding("process groups", "nccl", "runs", found)
    has_policy = hasattr(getattr(dist, "ProcessGroupNCCL", None), "NCCL_CTA_POLICY_ZERO")
    detail = "NestPipe(zero_sm=True)" if has_policy else f"NCCL {found} as torch was built has no such policy"
    yield Finding("process groups", "nccl by copy engines", "runs" if has_policy else "absent", detail)


def _methods() -> Iterator[Finding]:
    from baselines import registry

    for name in registry.names():
        reason = registry.why_broken(name)
        yield Finding("methods", name, "broken" if reason else "runs", reason)
    for hidden in registry.shadowed():
        yield Finding("methods", hidden.name, "broken", f"{hidden.summary}: {hidden.reason}")


def _short(error: Exception) -> str:
    lines = re.split(r"\s*\n\s*", f"{type(error).__name__}: {error}")
    return lines[0][:200]
