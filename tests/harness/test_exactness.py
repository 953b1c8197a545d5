"""Parameters of different devices are compared on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from harness.exactness import Difference, max_difference


class Elsewhere(torch.Tensor):
    """As on another device: no operator takes one together with a tensor of the CPU."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        found = {type(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if len(found) > 1:
            raise RuntimeError("Expected all tensors to be on the same device")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_parameters_of_different_devices_are_compared() -> None:
    here, there = torch.tensor([1.0, -4.0]), torch.tensor([1.0, -3.0]).as_subclass(Elsewhere)
    assert max_difference({"a": there}, {"a": here}) == Difference(0.25, "a")
    assert max_difference({"a": here}, {"a": there}).value == 1 / 3
