"""The seeded mask: its share, its mean, and that every place of a model has its own."""

import pytest
import torch

from nestpipe.kernels.padding import Padding
from workloads.models.dropout import TokenDropout, seeded_dropout


def test_dropout_keeps_the_mean_and_its_share():
    ones = torch.ones(500, 64, dtype=torch.float64)
    seeds, positions = torch.arange(500) % 7, torch.arange(500)
    dropped = seeded_dropout(ones, seeds, positions, layer=1, rate=0.3)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.max().item() == pytest.approx(1 / 0.7)


def test_every_layer_has_its_own_mask():
    padding = Padding.of(torch.tensor([3, 0, 40]), 43)
    ones, seeds = torch.ones(43, 16), torch.tensor([5, 6, 7])
    masks = [TokenDropout(0.5, layer)(ones, padding, seeds) == 0 for layer in range(-1, 4)]
    for number, mask in enumerate(masks):
        for other in masks[:number]:
            assert (mask == other).double().mean().item() == pytest.approx(0.5, abs=0.08)


def test_evaluation_drops_nothing():
    module = TokenDropout(0.5, 0)
    padding, ones = Padding.of(torch.tensor([4]), 4), torch.ones(4, 8)
    assert (module(ones, padding, torch.tensor([1])) == 0).any()
    assert torch.equal(module.eval()(ones, padding, None), ones)
