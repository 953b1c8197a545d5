"""The driver: takes a pipeline from one step to the next, and to the end of its data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch

from nestpipe.executor import Executor
from nestpipe.schedule import OpId, OpKind, Schedule
from nestpipe.stages import Engine
from nestpipe.step_state import StepState
from nestpipe.stream import BatchStream
from nestpipe.window import WindowChooser

logger = logging.getLogger("nestpipe")


class Driver:
    """Issues the ops of each step to the executor, with the state of every batch under way.

    Batches drawn from now on are cut as `window` says, which a `chooser` changes while training starts.
    """

    def __init__(
        self, engine: Engine, executor: Executor, schedule: Schedule, chooser: WindowChooser | None
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._chooser = chooser
        self._look_ahead = schedule.look_ahead
        self._rank = engine.transports.control.rank
        self.window = chooser.schedule if chooser is not None else schedule
        if chooser is not None:
            executor.observers.append(chooser.record)
        self.step = 0
        """The next step; those that a loaded state had been trained before do not count."""
        self.untrained: list[Any] = []
        self._stream: BatchStream | None = None
        self._first_step = 0
        self._running = False

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step, as `NestPipe.progress` says."""
        step = self.step
        if not self._running:
            self._start(batches)
        elif self._stream is not None and self._stream.source is not batches:
            self._stream.switch(batches)
        self._issue(step)
        state = self._engine.states[step]
        last_micro_batch = state.schedule.num_micro_batches - 1
        self._executor.run_until(OpId(OpKind.COMPUTE, step, last_micro_batch))
        # The last gradients are under way: what needs no update is done now, the next step waits for
        # this thread.
        result = state.take_result(self._engine.device) if state.alive else None
        self._forget(step)
        self._executor.run_until(OpId(OpKind.UPDATE, step))
        if result is None:
            self._stop(step)
            raise state.error or StopIteration
        self.step += 1
        self._observe(step)
        return result

    def _start(self, batches: Iterator[Any]) -> None:
        handed_back: list[Any] = []
        if self._stream is not None and self._stream.source is batches:
            handed_back = self.untrained
        elif self.untrained:
            logger.warning(
                "rank %d: %d batches of the old iterator stay untrained", self._rank, len(self.untrained)
            )
        self.untrained = []
        self._stream = BatchStream(batches, handed_back)
        self._running = True
        self._first_step = self.step
        for step in range(self.step - self._look_ahead, self.step):
            self._issue(step)

    def _issue(self, step: int) -> None:
        assert self._stream is not None
        states = self._engine.states
        # A batch runs as it was cut, even if the window has been chosen anew since.
        schedule = states[step].schedule if step in states else self.window
        ops = schedule.ops(step, self._first_step)
        if self._engine.replicas is not None and step >= self._first_step:
            ops = self._engine.replicas.with_average(ops, step, self._engine.num_earlier_steps + step)
        for op in ops:
            if op.step not in states:
                states[op.step] = StepState(op.step, self.window, self._stream)
        self._executor.issue(ops)

    def _stop(self, step: int) -> None:
        assert self._stream is not None
        self._executor.drain()
        states = self._engine.states
        drawn = [states[s].batch for s in sorted(states) if s >= step and states[s].error is None]
        self.untrained = [batch for batch in drawn if batch is not None] + self._stream.unread()
        if self.untrained:
            logger.warning(
                "rank %d: stopped after %d steps because another worker has no batch to go on with; %d drawn "
                "here stay untrained (NestPipe.untrained)",
                self._rank,
                step,
                len(self.untrained),
            )
        states.clear()
        self._running = False

    def _forget(self, step: int) -> None:
        """Drop what no op in flight can name: a step's write-back may still run under the next one."""
        first = self._executor.forget(before_step=step - 1)
        for old in [s for s in self._engine.states if s < first]:
            del self._engine.states[old]

    def _observe(self, step: int) -> None:
        if self._chooser is None or self._chooser.finished:
            return
        self._executor.wait_for_device(OpId(OpKind.UPDATE, step))
        self.window = self._chooser.observe(step, self._engine.states[step].schedule)
        if self._chooser.finished:
            self._executor.observers.remove(self._chooser.record)
