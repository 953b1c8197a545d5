"""A TorchRec train pipeline at work: stepped, timed, evaluated and read out by the common interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel

from baselines import torchrec_state
from baselines.interface import Evaluated, Runner, Setup, StepTimes
from baselines.torchrec_evaluation import evaluate, plain_forward
from baselines.torchrec_hooks import Observer, Point, StepHooks
from baselines.torchrec_keys import watch_keys
from baselines.torchrec_meter import StepMeter
from baselines.torchrec_optim import StepUpdates


class TorchRecRunner(Runner):
    """Steps an unmodified TorchRec pipeline of `model` and `optimizer`, the dense one.

    For training, workers must be given equal numbers of batches: TorchRec's own pipelines wait for each
    other forever where one of them runs out first.
    """

    def __init__(
        self,
        setup: Setup,
        model: DistributedModelParallel,
        optimizer: torch.optim.Optimizer,
        pipeline: Any,
        *,
        note: str = "",
        sync_replicas: Callable[[], None] | None = None,
        sync_every: int = 1,
        num_replicas: int = 1,
    ) -> None:
        self.note = note
        self._device = setup.device
        self._model = model
        self._pipeline = pipeline
        self._sync_replicas = sync_replicas
        self._sync_every = sync_every
        self._num_replicas = num_replicas
        self._num_steps = 0
        self._ended: Iterator[Any] | None = None
        """The iterator that was used up last, until another one comes."""
        self._result: tuple[torch.Tensor, Any] | None = None
        # A pipeline returns the output alone; the loss is caught where the model returns it.
        self._handles = [model.register_forward_hook(self._catch_result), *watch_keys(model)]
        self._updates = StepUpdates(setup, model.fused_optimizer, optimizer)
        self._meter = StepMeter()
        self._hooks = StepHooks(model, pipeline)
        self._hooks.add(self._meter)

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of the points of every step, inside the meter's own clock."""
        self._hooks.add(observer)

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step and return (loss, output); StopIteration when the batches are used up."""
        if self._ended is not None and batches is not self._ended:
            # TorchRec's base pipeline would stay at its end.
            self._pipeline.reset()
            self._ended = None
        # What autocast remembers of the weights would outlive their update.
        torch.clear_autocast_cache()
        with self._meter.step():
            self._updates.begin_step(self._num_steps)
            try:
                self._pipeline.progress(batches)
            except StopIteration:
                self._ended = batches
                raise
            self._num_steps += 1
            if self._sync_replicas is not None and self._num_steps % self._sync_every == 0:
                self._hooks.enter(Point.REPLICAS)
                self._sync_replicas()
                self._hooks.leave(Point.REPLICAS)
        assert self._result is not None
        (loss, output), self._result = self._result, None
        return loss.detach(), output

    def evaluate(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        """See `torchrec_evaluation.evaluate`; no observer is told of it and no step's time holds it.

        With replicas each worker's batches meet the rows of its own group.
        """
        return evaluate(self._forward, batches, self._device)

    def rows_of(self, table: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """See `torchrec_state.rows_of`; between two averagings of replicas, rank 0's group's rows."""
        return torchrec_state.rows_of(self._model, table, num_replicas=self._num_replicas)

    def step_times(self) -> list[StepTimes]:
        """Exposed times of the steps since the last call; see `StepMeter`."""
        return self._meter.take()

    def drain(self) -> None:
        """Do not count the time until the next `progress`: no thread of this method works in it."""
        self._meter.restart()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A collective; see `torchrec_state.gather_state`."""
        return torchrec_state.gather_state(self._model, num_replicas=self._num_replicas)

    def close(self) -> None:
        """Remove the hooks and let model and pipeline go."""
        self._hooks.close()
        self._updates.close()
        for handle in self._handles:
            handle.remove()
        self._pipeline = self._result = None

    def _forward(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """The model's result on a batch, with nothing left behind."""
        self._meter.restart()
        torch.clear_autocast_cache()
        with torch.no_grad(), self._hooks.muted(), plain_forward(self._model):
            # The bare model: DDP would count a forward pass that no backward follows.
            return self._model.module(batch.to(self._device))

    def _catch_result(self, _: Any, __: Any, result: tuple[torch.Tensor, Any]) -> None:
        self._result = result
