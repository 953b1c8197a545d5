"""The batches of a launch: equal for every method, held in memory only where they fit."""

from __future__ import annotations

from itertools import islice
from unittest import mock

import pytest
import torch

from harness import batches
from tests.distributed import run_workers
from tests.harness.fakes import BATCH_SIZE, FakeWorkload

NUM_BATCHES = 5


def draw(rank: int, num_workers: int, max_held_bytes: int) -> tuple[bool, list[torch.Tensor], bool, bool]:
    """Whether batches were held, the keys of two methods' streams, and whether those share memory."""
    with mock.patch.object(batches, "MAX_HELD_BYTES", max_held_bytes):
        source = batches.BatchSource(FakeWorkload(3), NUM_BATCHES)
    first, second = (list(islice(source.batches(), NUM_BATCHES)) for _ in range(2))
    equal = all(torch.equal(a.keys, b.keys) for a, b in zip(first, second, strict=True))
    shared = all(a.keys.data_ptr() == b.keys.data_ptr() for a, b in zip(first, second, strict=True))
    assert all(a is not b for a, b in zip(first, second, strict=True))
    return source.held, [batch.keys for batch in first], equal, shared


# Keys are int64, labels float32; two workers hold their batches on one machine.
NEEDED_BYTES = 2 * NUM_BATCHES * BATCH_SIZE * (3 * 8 + 4)


@pytest.mark.parametrize(("max_held_bytes", "held"), [(NEEDED_BYTES, True), (NEEDED_BYTES - 1, False)])
def test_methods_see_equal_batches_held_or_not(max_held_bytes: int, held: bool) -> None:
    for rank, (was_held, keys, equal, shared) in enumerate(run_workers(draw, 2, max_held_bytes)):
        expected = islice(FakeWorkload(3).batches(rank=rank, num_workers=2), NUM_BATCHES)
        assert all(torch.equal(ours, batch.keys) for ours, batch in zip(keys, expected, strict=True))
        assert (was_held, equal, shared) == (held, True, held)
