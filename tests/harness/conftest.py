"""What the harness's tests share: launches that do not import torch anew in every worker."""

from __future__ import annotations

from functools import partial
from multiprocessing.forkserver import ensure_running

import pytest
from torch.distributed.launcher.api import LaunchConfig

import tests.distributed  # noqa: F401 - tells the server what to load


@pytest.fixture(autouse=True)
def forked_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked from the tests' server; the installed command, in a test of its own, spawns them."""
    ensure_running()
    monkeypatch.setattr("harness.launch.LaunchConfig", partial(LaunchConfig, start_method="forkserver"))
