"""Evaluation of a model that a TorchRec pipeline trains: plain forward passes beside the pipeline's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from baselines.interface import Evaluated
from baselines.torchrec_state import kernels, sharded_modules


class _Turn(IntEnum):
    """What a worker brings to a round."""

    BATCH = 1
    REPEAT = 2
    """No batch of its own any more, but one to repeat, for the others' sake."""
    NOTHING = 3
    FAILED = 4


def evaluate(
    forward: Callable[[Any], tuple[torch.Tensor, Any]], batches: Iterator[Any], device: torch.device
) -> Iterator[Evaluated]:
    """Each batch with the loss and output that `forward` finds; ends when no worker has a batch left.

    TorchRec's collectives need every worker in every round, so one whose batches are at their end, or
    whose caller has closed the generator, repeats a batch and drops the result until the others are done.
    A batch that cannot be drawn on one worker is an error on all; one that fails inside the model is not
    known to the others, which wait until their time limit.
    """
    draw = _Draw(batches, device)
    for batch, is_own in draw.rounds():
        loss, output = forward(batch)
        if not is_own:
            continue
        try:
            yield batch, loss, output
        except GeneratorExit:
            draw.end()


class _Draw:
    """Draws one worker's batches in step with the others'."""

    def __init__(self, batches: Iterator[Any], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._last: Any = None

    def end(self) -> None:
        """Draw no more batches."""
        self._batches = iter(())

    def rounds(self) -> Iterator[tuple[Any, bool]]:
        """A batch a round, as many on every worker, and whether it is this worker's own or a repeated one."""
        while True:
            turn, failure = self._next()
            turns = self._exchange(turn)
            if _Turn.FAILED in turns:
                rank = turns.index(_Turn.FAILED)
                raise failure or RuntimeError(f"evaluation stopped: rank {rank} could not draw its batch")
            if _Turn.BATCH not in turns:
                return
            if _Turn.NOTHING in turns:
                self._last = self._lend(turns.index(_Turn.BATCH))
            yield self._last, turn is _Turn.BATCH

    def _next(self) -> tuple[_Turn, Exception | None]:
        try:
            self._last = next(self._batches)
        except StopIteration:
            self.end()  # an iterator that has ended is not asked again
            return _Turn.NOTHING if self._last is None else _Turn.REPEAT, None
        except Exception as error:
            return _Turn.FAILED, error
        return _Turn.BATCH, None

    def _exchange(self, turn: _Turn) -> list[int]:
        """Every worker's turn, by rank."""
        turns = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=self._device)
        turns[dist.get_rank()] = int(turn)
        dist.all_reduce(turns)
        return turns.tolist()

    def _lend(self, lender: int) -> Any:
        """The lender's batch, for workers that have had none; others keep their own."""
        lent = [self._last if dist.get_rank() == lender else None]
        dist.broadcast_object_list(lent, src=lender, device=self._device)
        return lent[0] if self._last is None else self._last


@contextmanager
def plain_forward(model: DistributedModelParallel) -> Iterator[None]:
    """Evaluation mode, with the forwards that the model was built with; afterwards all is as before.

    A pipeline with batches under way has put forwards of its own on the sharded modules and their input
    dists, which would hand out those batches' rows.
    """
    training = [module for module in model.modules() if module.training]
    counters = [(counter, counter.clone()) for counter in _step_counters(model)]
    replaced = [(owner, vars(owner).pop("forward")) for owner in _pipelined(model)]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for owner, forward in replaced:
            owner.forward = forward
        for counter, value in counters:
            counter.copy_(value)


def _pipelined(model: DistributedModelParallel) -> Iterator[nn.Module]:
    """Sharded modules and key exchanges whose `forward` is not their class's own."""
    for module in sharded_modules(model).values():
        exchanges = [each._dist for each in module._input_dists if hasattr(each, "_dist")]
        yield from (owner for owner in (module, *exchanges) if "forward" in vars(owner))


def _step_counters(model: DistributedModelParallel) -> Iterator[torch.Tensor]:
    """FBGEMM's counts of steps, which a forward pass advances and Adam's bias correction reads."""
    for module in sharded_modules(model).values():
        for kernel in kernels(module):
            yield from (kernel.emb_module.iter, kernel.emb_module.iter_cpu)
