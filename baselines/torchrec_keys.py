"""TorchRec settles at its first lookup where each feature stands in a batch; later batches are held to it."""

from __future__ import annotations

from typing import Any

from torch.utils.hooks import RemovableHandle
from torchrec.distributed.model_parallel import DistributedModelParallel

from baselines.torchrec_state import sharded_modules


def watch_keys(model: DistributedModelParallel) -> list[RemovableHandle]:
    """Hooks that raise ValueError for a lookup with other keys than the first one had.

    TorchRec would take each feature from its old place and read another feature's ids, silently.
    """
    modules = sharded_modules(model).values()
    return [module.register_forward_pre_hook(_KeyOrder()) for module in modules]


class _KeyOrder:
    """The keys of one module's lookups."""

    def __init__(self) -> None:
        self._keys: list[str] | None = None

    def __call__(self, _: Any, args: tuple[Any, ...]) -> None:
        if not args:
            return
        keys = args[0].keys()
        if self._keys is None:
            self._keys = list(keys)
        elif keys != self._keys:
            raise ValueError(
                f"TorchRec needs the same keys in every batch, in one order: the first had {self._keys}, "
                f"this one has {list(keys)}"
            )
