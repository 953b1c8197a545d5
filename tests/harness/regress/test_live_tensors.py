"""Bytes in live tensors: what Python holds counts, whoever else holds it too, and nothing else."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from harness.regress.live_tensors import TensorMeter, live_bytes

KIB = 256
"""Floats."""


@pytest.fixture(autouse=True)
def others_are_frozen() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_storages_that_python_holds_count_once() -> None:
    before = live_bytes()
    kept = [torch.zeros(KIB)]
    kept.append(kept[0][KIB // 2 :])
    assert live_bytes() - before == 1024
    parameter = nn.Parameter(torch.zeros(2 * KIB))
    assert live_bytes() - before == 3 * 1024
    del kept
    assert live_bytes() - before == 2 * 1024
    assert parameter.numel() == 2 * KIB


def test_what_others_hold_too_counts_and_what_they_alone_hold_does_not() -> None:
    """A transport's thread keeps what it has sent for as long as it likes, as a graph keeps its inputs."""
    before = live_bytes()
    leaf = torch.ones((), requires_grad=True)
    saved = torch.zeros(KIB)
    graph = (leaf * saved).sum()
    assert live_bytes() - before == 1024 + leaf.nbytes + graph.nbytes
    del saved
    assert live_bytes() - before == leaf.nbytes + graph.nbytes
    graph.backward()


def test_the_meter_keeps_the_most_and_looks_after_each_forward() -> None:
    head = nn.Linear(1, 1, bias=False)
    meter = TensorMeter(head)
    given = torch.zeros(1, 1)
    cycle: list[object] = [torch.zeros(4 * KIB)]
    cycle.append(cycle)
    del cycle
    head(given)
    least = meter.peak_bytes
    assert 0 < least < 1024  # a cycle that nobody can reach is gone, whenever the collector comes
    more = torch.zeros(KIB)
    meter.sample()
    assert meter.peak_bytes == more.nbytes + given.nbytes + head.weight.nbytes
    del more
    peak = meter.peak_bytes
    head(given)
    assert meter.peak_bytes == peak
