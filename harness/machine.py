"""What a measurement depends on besides the code: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_DISTRIBUTIONS = ("nestpipe", "torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy")


@dataclass(frozen=True)
class Machine:
    """The machine's fingerprint."""

    cpu: str
    cores: int
    """Cores that this process may use."""
    memory_bytes: int
    os: str


def fingerprint() -> Machine:
    """The machine that this process runs on."""
    return Machine(_cpu_model(), num_cores(), psutil.virtual_memory().total, platform.platform())


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Versions of Python and of the installed distributions that matter."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> tuple[str, bool]:
    """The commit of the checkout and whether it has changes; ("", False) outside one."""
    head = _git("rev-parse", "HEAD")
    return head, bool(head and _git("status", "--porcelain"))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
