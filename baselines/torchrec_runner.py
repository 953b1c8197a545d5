"""A TorchRec train pipeline at work: stepped, timed and read out through the common interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel

from baselines.interface import Runner, StepTimes
from baselines.torchrec_common import gather_state
from baselines.torchrec_hooks import Observer, Point, StepHooks
from baselines.torchrec_meter import StepMeter


class TorchRecRunner(Runner):
    """Steps an unmodified TorchRec pipeline.

    Workers must be given equal numbers of batches: TorchRec's own pipelines wait for each other forever
    where one of them runs out first.
    """

    def __init__(
        self,
        model: DistributedModelParallel,
        pipeline: Any,
        *,
        note: str = "",
        sync_replicas: Callable[[], None] | None = None,
        sync_every: int = 1,
        num_replicas: int = 1,
    ) -> None:
        self.note = note
        self._model = model
        self._pipeline = pipeline
        self._sync_replicas = sync_replicas
        self._sync_every = sync_every
        self._num_replicas = num_replicas
        self._num_steps = 0
        self._result: tuple[torch.Tensor, Any] | None = None
        # A pipeline returns the output alone; the loss is caught where the model returns it.
        self._result_hook = model.register_forward_hook(self._catch_result)
        self._meter = StepMeter()
        self._hooks = StepHooks(model, pipeline)
        self._hooks.add(self._meter)

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of the points of every step, inside the meter's own clock."""
        self._hooks.add(observer)

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step and return (loss, output); StopIteration when the batches are used up."""
        with self._meter.step():
            self._pipeline.progress(batches)
            self._num_steps += 1
            if self._sync_replicas is not None and self._num_steps % self._sync_every == 0:
                self._hooks.enter(Point.REPLICAS)
                self._sync_replicas()
                self._hooks.leave(Point.REPLICAS)
        assert self._result is not None
        (loss, output), self._result = self._result, None
        return loss.detach(), output

    def step_times(self) -> list[StepTimes]:
        """Exposed times of the steps since the last call; see `StepMeter`."""
        return self._meter.take()

    def drain(self) -> None:
        """Do not count the time until the next `progress`: no thread of this method works in it."""
        self._meter.restart()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A collective; see `gather_state`."""
        return gather_state(self._model, num_replicas=self._num_replicas)

    def close(self) -> None:
        """Remove the hooks and let model and pipeline go."""
        self._hooks.close()
        self._result_hook.remove()
        self._pipeline = self._result = None

    def _catch_result(self, _: Any, __: Any, result: tuple[torch.Tensor, Any]) -> None:
        self._result = result
