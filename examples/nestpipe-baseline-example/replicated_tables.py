"""Every worker holds every table: no lookup travels, but the gradient of each table is all-reduced.

What one did before tables outgrew a worker's memory, and the simplest thing to compare with where they have
not. The arithmetic is TorchRec's: row gradients summed over all workers and divided by their number, one
update a touched row and step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from baselines.interface import Evaluated, Exactness, Method, MethodSetting, Runner, Setup, StepTimes
from nestpipe.layout import Layout, build_layout, find_collections

EXCHANGES = ("whole", "touched")


def parse_exchange(text: str) -> str:
    """One of EXCHANGES; ValueError for anything else."""
    if text not in EXCHANGES:
        raise ValueError(f"must be {' or '.join(EXCHANGES)}, got {text!r}")
    return text


class ReplicatedRunner(Runner):
    """Trains the model as it is, with gradients averaged over the workers."""

    def __init__(self, setup: Setup, exchange: str) -> None:
        self.note = f"tables on every worker, {exchange} gradients all-reduced"
        self._exchanges_all = exchange == "whole"
        self._setup = setup
        self._model = setup.model
        self._layout: Layout = build_layout(find_collections(setup.model), 1)
        self._tables = {
            table.name: setup.model.get_parameter(table.parameter) for table in self._layout.tables
        }
        self._states = {
            name: {
                key: torch.zeros(weight.shape[0], width)
                for key, width in setup.sparse_optimizer.state_widths(weight.shape[1]).items()
            }
            for name, weight in self._tables.items()
        }
        sparse = {table.parameter for table in self._layout.tables}
        self._dense = [value for name, value in setup.model.named_parameters() if name not in sparse]
        self._optimizer = setup.dense_optimizer(self._dense)
        self._base_lrs = [group["lr"] for group in self._optimizer.param_groups]
        self._num_workers = dist.get_world_size()
        self._num_steps = 0
        self._times: list[StepTimes] = []

    def progress(self, batches: Iterator[Any]) -> tuple[torch.Tensor, Any]:
        """Train one step; every worker must have as many batches as the others."""
        stamps = [perf_counter()]
        batch = next(batches)
        stamps.append(perf_counter())
        self._model.zero_grad(set_to_none=True)
        loss, output = self._model(batch)
        loss.backward()
        stamps.append(perf_counter())
        touched = self._reduce(batch)
        stamps.append(perf_counter())
        self._update(touched)
        stamps.append(perf_counter())
        lookup, compute, comm, update = (1e3 * (b - a) for a, b in pairwise(stamps))
        self._times.append(StepTimes(1e3 * (stamps[-1] - stamps[0]), lookup, comm, compute + update))
        return loss.detach(), output

    def step_times(self) -> list[StepTimes]:
        """What each step took since the last call; nothing of it is hidden."""
        times, self._times = self._times, []
        return times

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's own, on rank 0."""
        return {} if dist.get_rank() else {k: v.detach().clone() for k, v in self._model.state_dict().items()}

    def evaluate(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        """Each batch with its loss and output; no worker needs another for it."""
        for batch in batches:
            self._model.eval()
            with torch.no_grad():
                loss, output = self._model(batch)
            self._model.train()
            yield batch, loss, output

    def rows_of(self, table: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This worker's share of a table that all of them have."""
        if table not in self._tables:
            raise ValueError(f"the model has no table {table!r}; its tables: {', '.join(self._tables)}")
        weight = self._tables[table].detach()
        ids = torch.arange(dist.get_rank(), weight.shape[0], self._num_workers)
        yield ids, weight[ids]

    def _reduce(self, batch: Any) -> dict[str, torch.Tensor]:
        """Average all gradients; the rows of each table that any worker has touched."""
        for parameter in self._dense:
            assert parameter.grad is not None
            self._average(parameter.grad)
        touched = {name: torch.zeros(len(weight), dtype=torch.bool) for name, weight in self._tables.items()}
        for slot in (slot for slots in self._layout.slots for slot in slots):
            touched[slot.table.name][batch.sparse_features[slot.feature].values()] = True
        rows = {}
        for name, weight in self._tables.items():
            assert weight.grad is not None
            mask = touched[name].to(torch.uint8)
            dist.all_reduce(mask, dist.ReduceOp.MAX)
            rows[name] = mask.nonzero().view(-1)
            if self._exchanges_all:
                self._average(weight.grad)
            else:
                gradients = weight.grad[rows[name]]
                self._average(gradients)
                weight.grad[rows[name]] = gradients
        return rows

    def _average(self, gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient)
        gradient /= self._num_workers

    @torch.no_grad()
    def _update(self, touched: dict[str, torch.Tensor]) -> None:
        factor = self._setup.dense_lr_factor
        for group, lr in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = lr * (1.0 if factor is None else factor(self._num_steps))
        self._optimizer.step()
        factor = self._setup.sparse_lr_factor
        sparse_factor = 1.0 if factor is None else factor(self._num_steps)
        self._num_steps += 1
        for name, weight in self._tables.items():
            assert weight.grad is not None
            rows = touched[name]
            values = weight[rows]
            state = {key: value[rows] for key, value in self._states[name].items()}
            self._setup.sparse_optimizer.update(
                values, state, weight.grad[rows], self._num_steps, sparse_factor
            )
            weight[rows] = values
            for key, value in state.items():
                self._states[name][key][rows] = value


class Replicated(Method):
    """Data parallelism for everything."""

    name = "replicated"
    summary = "every table on every worker, gradients all-reduced"
    exactness = Exactness("library", "torchrec", 1e-5)
    settings = {  # noqa: RUF012 - a mapping of its class, as its base has it
        "exchange": MethodSetting(parse_exchange, "of table gradients: whole (default) or touched rows alone")
    }

    def build(self, setup: Setup) -> ReplicatedRunner:
        """The model stays as it is. Raises ValueError for an accelerator and for clipping."""
        if setup.device.type != "cpu":
            raise ValueError("replicated runs on CPUs alone: use device=cpu")
        if setup.clipping is not None:
            raise ValueError("replicated does not clip gradients: leave max_grad_norm out")
        return ReplicatedRunner(setup, setup.options.get("exchange", "whole"))


REPLICATED = Replicated()
