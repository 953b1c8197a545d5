"""Recursive bisection along the principal direction of sketches: the engine's first clustering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from nestpipe.shared_keys import Ints, SharedKeys

_SKETCH_WIDTH = 128
_NUM_POWER_ITERATIONS = 8


def principal_order(shared: SharedKeys, sizes: Sequence[int]) -> Ints:
    """Halve the micro-batches again and again, along the direction in which samples differ most.

    A sample is a signed count sketch of its shared keys (Charikar, Chen and Farach-Colton, ICALP 2002), in
    which frequent keys, which every micro-batch has anyway, count less.
    """
    order = np.arange(shared.num_samples)
    _divide(_sketch(shared), order, [size for size in sizes if size])
    return order


def _sketch(shared: SharedKeys) -> torch.Tensor:
    """[num_samples, width]"""
    random = np.random.default_rng(0)
    num_keys = len(shared.frequencies)
    columns = random.integers(0, _SKETCH_WIDTH, num_keys)
    signed = random.choice([-1.0, 1.0], num_keys) / np.sqrt(shared.frequencies)
    cells = shared.samples * _SKETCH_WIDTH + np.repeat(columns, shared.frequencies)
    weights = np.repeat(signed, shared.frequencies)
    sketch = np.bincount(cells, weights=weights, minlength=shared.num_samples * _SKETCH_WIDTH)
    return torch.from_numpy(sketch.astype(np.float32)).view(-1, _SKETCH_WIDTH)


def _divide(sketch: torch.Tensor, order: Ints, sizes: list[int]) -> None:
    """Arrange `order` [n], a view, so that its first sizes[0] samples belong together, and so on."""
    if len(sizes) < 2:
        return
    half = len(sizes) // 2
    own = sketch[torch.from_numpy(order)]
    scores = _principal_scores(own - own.mean(0))
    order[:] = order[torch.argsort(scores, stable=True).numpy()]
    left = sum(sizes[:half])
    _divide(sketch, order[:left], sizes[:half])
    _divide(sketch, order[left:], sizes[half:])


def _principal_scores(centred: torch.Tensor) -> torch.Tensor:
    """Position of each row of `centred` [n, width] along its first principal direction."""
    gram = centred.t() @ centred
    direction = gram.diagonal().clone() + 1e-12
    for _ in range(_NUM_POWER_ITERATIONS):
        direction = gram @ direction
        direction /= direction.norm() + 1e-30
    return centred @ direction
