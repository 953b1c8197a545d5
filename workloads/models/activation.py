"""Activations by the name that a user sets."""

from __future__ import annotations

from torch import nn

_ACTIVATIONS = {"silu": nn.SiLU, "relu": nn.ReLU}


def activation_of(name: str) -> nn.Module:
    """A module of the activation `name`, silu or relu."""
    return _ACTIVATIONS[name]()
