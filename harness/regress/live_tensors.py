"""How many bytes the live tensors of a process hold, asked at the same points of every step."""

from __future__ import annotations

import gc
import sys
import time
from itertools import chain, groupby
from operator import itemgetter, methodcaller
from typing import Any

import torch
from torch import nn

HAND_OVER_S = 1e-3


class TensorMeter:
    """The most bytes seen in tensors, when a dense forward has ended and when a step has.

    Counted are storages of tensors that Python holds, each once: tables, optimizer state, buffers, rows and
    batches, not what autograd or a transport thread alone keeps. Objects from before the first meter of a
    process are left out, since the collector need not look through them again.
    """

    def __init__(self, model: nn.Module) -> None:
        gc.collect()
        self.peak_bytes = 0
        head = getattr(model, "head", model)
        assert isinstance(head, nn.Module)
        head.register_forward_hook(self._after_forward)

    def sample(self) -> None:
        """Look at what is alive now; cycles wait for a collector whose time is its own, so they go first.

        A transport's thread that lets go of a tensor gives up its count and then waits for the interpreter,
        and meanwhile the tensor looks like one of Python's. So the interpreter is left to others for a
        moment, and what is gone after it does not count.
        """
        gc.collect()
        seen = live_bytes()
        time.sleep(HAND_OVER_S)
        self.peak_bytes = max(self.peak_bytes, min(seen, live_bytes()))

    def _after_forward(self, head: nn.Module, inputs: Any, output: Any) -> None:
        self.sample()


def live_bytes() -> int:
    """Bytes of the storages of all tensors that Python holds, leaving out frozen objects.

    When gloo's threads let go of a collective's tensors depends on the machine, and so do tensors that only
    they hold.
    """
    held = {}
    for item in (*_tracked(torch.Tensor), *_tracked(nn.Parameter)):
        if item.layout is torch.strided and sys.getrefcount(item) > _references_from_elsewhere(item):
            storage = item.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())


def _tracked(kind: type[torch.Tensor]) -> list[torch.Tensor]:
    """All objects of exactly that type that the collector tracks, found in a single call into C.

    A tuple that another thread is still building is among all objects; while they are in a list, that thread
    cannot finish it and fails. So none may run until the list is gone, and any line of Python would let it.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # a collection runs finalizers
    try:
        objects = chain.from_iterable(map(gc.get_objects, (None,)))
        by_type = filter(methodcaller("__contains__", kind), groupby(objects, type))
        return list(chain.from_iterable(map(itemgetter(1), by_type)))
    finally:
        if was_enabled:
            gc.enable()


def _references_from_elsewhere(item: torch.Tensor) -> int:
    """References to a tensor that a walk over the collector's objects sees and that do not keep it.

    They are the walk's tuple, its variable and the argument of `getrefcount`, and one of C++ for as long as
    anything there holds the tensor too.
    """
    return 3 + (item._use_count() > 1)  # type: ignore[attr-defined]  # torch's stub lacks it
