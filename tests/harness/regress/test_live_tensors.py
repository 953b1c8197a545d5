"""Bytes in live tensors: what Python holds counts, whoever else holds it too, and nothing else."""

from __future__ import annotations

import gc
import sys
import threading
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


def test_other_threads_are_not_disturbed() -> None:
    """A tuple under construction must not be held by anybody else, or the thread that builds it fails."""
    failures: list[SystemError] = []
    num_built = 0
    has_ended = threading.Event()

    def build() -> None:
        nonlocal num_built
        while not has_ended.is_set():
            try:
                num_built += len(tuple(number for number in range(100))) // 100
            except SystemError as error:
                failures.append(error)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=build)
    thread.start()
    try:
        while num_built < 20_000 and not failures:
            live_bytes()
    finally:
        has_ended.set()
        thread.join()
        sys.setswitchinterval(interval_s)
    assert failures == []


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
