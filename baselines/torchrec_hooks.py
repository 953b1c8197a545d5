"""The points of TorchRec's step at which something is read, sent or written, and who is told of them.

The meter and the emulated cluster both hang on these points, so both see the same step. Nothing of
TorchRec is replaced: hooks and wrappers sit on one runner's own objects and go away with `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import Node
from torchrec.distributed import comm_ops
from torchrec.distributed.types import ShardedModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class Point(StrEnum):
    """What TorchRec does at a point, by the name of the op of NestPipe's schedule that does the same."""

    PREFETCH = "prefetch"
    """Taking a batch from the iterator and moving it to the device."""
    ROUTE = "route"
    """Input dist: dedup, bucketing, All2All of splits, lengths and keys, and waiting for them."""
    RETRIEVE = "retrieve"
    """An embedding kernel's forward: the owner reads its rows."""
    EXCHANGE = "exchange"
    """Issuing the exchange of rows and waiting for it."""
    REDUCE = "reduce"
    """Issuing the exchange of row gradients and waiting for it."""
    WRITE_BACK = "write_back"
    """An embedding kernel's fused backward: the owner updates its rows."""
    REPLICAS = "replicas"
    """Averaging replicas of tables (2D)."""


class Observer(Protocol):
    """Is told when a point begins and ends; points nest.

    `features` holds the ids that the kernel reads or writes at RETRIEVE and WRITE_BACK, else None.
    """

    def enter(self, point: Point, features: KeyedJaggedTensor | None) -> None: ...

    def leave(self, point: Point, features: KeyedJaggedTensor | None) -> None: ...


_COMM_NODES = frozenset(
    f"{name}Backward"
    for name, value in vars(comm_ops).items()
    if isinstance(value, type) and issubclass(value, torch.autograd.Function)
)
_PIPELINE_POINTS = {
    "_next_batch": Point.PREFETCH,
    "_copy_batch_to_gpu": Point.PREFETCH,
    "copy_batch_to_gpu": Point.PREFETCH,
    "start_sparse_data_dist": Point.ROUTE,
    "wait_sparse_data_dist": Point.ROUTE,
}


class StepHooks:
    """The hooks of one runner: told to its observers, the first one outermost."""

    def __init__(self, model: nn.Module, pipeline: Any) -> None:
        self._observers: list[Observer] = []
        self._removals: list[Callable[[], None]] = []
        for name, point in _PIPELINE_POINTS.items():
            if hasattr(pipeline, name):
                self._wrap(pipeline, name, point)
        for module in model.modules():
            if isinstance(module, ShardedModule):
                self._hook_sharded(module)

    def add(self, observer: Observer) -> None:
        """Tell `observer` too, inside of those already there."""
        self._observers.append(observer)

    def enter(self, point: Point, features: KeyedJaggedTensor | None = None) -> None:
        """Tell the observers that `point` begins."""
        for observer in self._observers:
            observer.enter(point, features)

    def leave(self, point: Point, features: KeyedJaggedTensor | None = None) -> None:
        """Tell the observers that `point` ends."""
        for observer in reversed(self._observers):
            observer.leave(point, features)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Tell nobody of what happens meanwhile."""
        observers, self._observers = self._observers, []
        try:
            yield
        finally:
            self._observers = observers

    def close(self) -> None:
        """Take every hook and wrapper away."""
        for remove in self._removals:
            remove()
        self._removals.clear()
        self._observers.clear()

    def _shadow(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Put `replacement` before the bound method `owner.name`, on this one object."""
        setattr(owner, name, replacement)
        self._removals.append(partial(delattr, owner, name))

    def _wrap(self, owner: Any, name: str, point: Point) -> None:
        self._shadow(owner, name, self._telling(getattr(owner, name), point))

    def _telling(self, function: Callable[..., Any], point: Point) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            self.enter(point)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave(point)

        return told

    def _hook_sharded(self, module: Any) -> None:
        # Whatever of a sharded module's forward is neither kernel nor output dist is the input dist or the
        # wait for what the pipeline began of it. Only hooks do here: the pipeline replaces `forward`.
        handles = (
            module.register_forward_pre_hook(lambda *_: self.enter(Point.ROUTE)),
            module.register_forward_hook(lambda *_: self.leave(Point.ROUTE), always_call=True),
        )
        self._removals.extend(handle.remove for handle in handles)
        for lookup in module._lookups:
            for kernel in lookup._emb_modules:
                self._shadow(kernel, "forward", self._kernel_forward(kernel.forward))
        for output_dist in module._output_dists:
            self._shadow(output_dist, "forward", self._output_dist_forward(output_dist.forward))

    def _kernel_forward(self, forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def told(features: KeyedJaggedTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            self.enter(Point.RETRIEVE, features)
            try:
                rows = forward(features, *args, **kwargs)
            finally:
                self.leave(Point.RETRIEVE, features)
            if rows.grad_fn is not None:
                self._around_node(_table_node(rows.grad_fn), Point.WRITE_BACK, features)
            return rows

        return told

    def _output_dist_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        issue = self._telling(forward, Point.EXCHANGE)

        def told(*args: Any, **kwargs: Any) -> Any:
            awaitable = issue(*args, **kwargs)
            wait = self._telling(awaitable.wait, Point.EXCHANGE)

            def wait_and_hook() -> torch.Tensor:
                rows = wait()
                for node in _comm_nodes(rows.grad_fn):
                    self._around_node(node, Point.REDUCE)
                return rows

            awaitable.wait = wait_and_hook
            return awaitable

        return told

    def _around_node(self, node: Node, point: Point, features: KeyedJaggedTensor | None = None) -> None:
        # The graph lives for one step, and its hooks with it: nothing to remove.
        node.register_prehook(lambda *_: self.enter(point, features))
        node.register_hook(lambda *_: self.leave(point, features))


def _table_node(node: Node) -> Node:
    """The node of the fused lookup: the first one below `node` that ends in table weights."""
    while True:
        below = [function for function, _ in node.next_functions if function is not None]
        assert below, "a kernel's output does not depend on a table"
        if any(type(function).__name__ == "AccumulateGrad" for function in below):
            return node
        node = below[0]


def _comm_nodes(node: Node | None) -> Iterator[Node]:
    """The nodes of TorchRec's row exchange, neighbours in the chain from `node` down to the table."""
    found = False
    while node is not None:
        if type(node).__name__ in _COMM_NODES:
            found = True
            yield node
        elif found:
            return
        node = next((function for function, _ in node.next_functions if function is not None), None)
