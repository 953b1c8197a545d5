"""Initial weights that are a function of the seed, whatever was drawn before in the process."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import nn

ModelType = TypeVar("ModelType", bound=nn.Module)


@torch.no_grad()
def initialise(model: ModelType, seed: int) -> ModelType:
    """Fill the parameters of `model` in place, in float32, and return it.

    Embedding rows are normal with deviation 1 / sqrt(dim), so about of unit length; matrices are uniform
    within 1 / sqrt(fan in), their biases zeros; all else keeps its module's constants.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            # Much shorter rows would be turned around by Adagrad's first step, which has the length lr
            # whatever the gradient's, and two runs that differ by rounding would soon differ visibly.
            module.weight.normal_(0.0, 1.0 / math.sqrt(module.embedding_dim), generator=generator)
        elif isinstance(module, nn.Linear):
            bound = 1.0 / math.sqrt(module.in_features)
            module.weight.uniform_(-bound, bound, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
    return model
