"""The interface of a method under comparison: how it is built, stepped, measured and read out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from nestpipe.clipping import GradientClipping
from nestpipe.evaluation import Evaluated
from nestpipe.freshness import FreshnessMeter
from nestpipe.lr import LrFactor
from nestpipe.optim import SparseOptimizer
from nestpipe.schedule import Schedule
from nestpipe.table import HostTier
from nestpipe.trace import OpEvent


@dataclass(frozen=True)
class Setup:
    """What every method is given on a worker: a model of its own and the same optimizers."""

    model: nn.Module
    """Unsharded, on the CPU, with TorchRec embedding modules; `forward(batch)` returns (loss, output)."""
    sparse_optimizer: SparseOptimizer
    dense_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    host_tier: HostTier | None = None
    """Told of every access to host rows by methods on the engine; an emulated cluster charges there."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method that the user gave, for example `replicas` or `micro_batches`."""
    events: list[OpEvent] | None = None
    """Where given, methods on the engine leave every op's event here as its step's times are read."""
    freshness: FreshnessMeter | None = None
    """Where given, methods on the engine count in it how stale the rows are that they read."""
    check_bounds: bool = False
    """Whether methods on the engine look at every index before kernels follow it."""
    dense_lr_factor: LrFactor | None = None
    """By step, counted from 0: the factor on the dense optimizer's learning rates; None: always 1."""
    sparse_lr_factor: LrFactor | None = None
    """By step, counted from 0: the factor on the sparse optimizer's learning rate; None: always 1."""
    clipping: GradientClipping | None = None
    """Limits the norm of each step's gradients."""


@dataclass(frozen=True)
class MethodSetting:
    """One key of `--set` that a method of a third party brings along."""

    parse: Callable[[str], Any]
    """From what the user types to what `Setup.options` holds, which JSON can hold as well. Raises ValueError,
    without the key's name in it, for what does not fit."""
    meaning: str
    """A few words for listings, with the default."""


@dataclass(frozen=True)
class StepTimes:
    """Where one step's time went on one worker, in milliseconds of exposed time.

    Lookup is prefetch, h2d, route, retrieve, sync and write-back; comm is the exchange of rows and of
    their gradients; dense is compute, all-reduce and update. `other_ms` is what none of them explains.
    """

    step_ms: float
    lookup_ms: float
    comm_ms: float
    dense_ms: float

    @property
    def other_ms(self) -> float:
        return self.step_ms - self.lookup_ms - self.comm_ms - self.dense_ms


@dataclass(frozen=True)
class Exactness:
    """The class a method promises, and the method it is measured against."""

    kind: str
    """bitwise, reordered, library, "stale by 1" or approximate."""
    against: str
    tolerance: float | None
    """Largest allowed max-difference / max-weight of any parameter in float32; None: reported only."""


class Runner(ABC):
    """A method at work on one worker."""

    schedule: Schedule | None = None
    """The schedule in force, for a method on the engine."""
    note: str = ""
    """What a reader of the table must know, for example how 2D groups came out."""

    @abstractmethod
    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step and return (loss, output); StopIteration when any worker has no batch."""

    @abstractmethod
    def step_times(self) -> list[StepTimes]:
        """Exposed times of the steps since the last call, one entry a step, and forget them."""

    @abstractmethod
    def state_dict(self) -> dict[str, torch.Tensor]:
        """A collective: on rank 0 tables and dense parameters as plain tensors under the unsharded
        model's names, elsewhere an empty dict."""

    def evaluate(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        """Each batch as it was drawn, with its loss and the model's output, one batch at a time.

        The model runs forward only, in evaluation mode and without gradients. A collective, though workers
        may have different numbers of batches. Those drawn ahead for training stay drawn, and training goes
        on as if nothing had been evaluated. Not every method need offer it: the default raises
        NotImplementedError.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot evaluate: it does not define `evaluate`")

    def rows_of(self, table: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This worker's rows of a table by its configuration's name: ids [n] and rows [n, dim], copies.

        In chunks; every row of the table is on exactly one worker of the world. With replicas those of
        rank 0's group count, which between two averagings differ from the others'. Raises ValueError for
        an unknown name. Not every method need offer it: the default raises NotImplementedError.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rows to show: it does not define `rows_of`")

    def drain(self) -> None:  # noqa: B027 - most methods have nothing in flight
        """Wait until nothing of this method runs in the background."""

    def close(self) -> None:  # noqa: B027
        """Release threads and hooks; the runner is unusable afterwards."""


class Method(ABC):
    """A named way to train, built once a worker."""

    name: str
    summary: str
    exactness: Exactness | None
    extra_warmup_steps: int = 0
    """Steps that the method needs, on top of the user's warm-up, before its steps are comparable."""
    supports_float64: bool = False
    """Whether it can train a float64 model all through, so that a check can tell its errors from rounding."""
    supports_uneven_ends: bool = False
    """Whether `progress` ends on every worker where one of them has no batch left and others have; without,
    workers are given equal numbers of batches."""
    settings: Mapping[str, MethodSetting] = MappingProxyType({})
    """Keys of `--set` that no other method has; what is given of them is in `Setup.options`."""

    @abstractmethod
    def build(self, setup: Setup) -> Runner:
        """A collective: every worker builds the same methods in the same order."""
