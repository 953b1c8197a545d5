"""Full state on rank 0: tables gathered and scattered in chunks, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nestpipe.layout import Layout, Table
from nestpipe.loading import OwnedRows, owned_rows
from nestpipe.replicas import CHUNK_BYTES, Replicas
from nestpipe.table import HostTable
from nestpipe.transport import Transports

StateDict = dict[str, torch.Tensor]

_OPTIMIZER = "optimizer."
_NUM_STEPS = "optimizer.num_steps"


class Checkpoint:
    """Reads and writes the whole state of a pipeline that has nothing in flight.

    With replicas, rank 0's group is the one that is read, and what is loaded goes on to the others.
    """

    def __init__(
        self,
        model: nn.Module,
        dense_optimizer: torch.optim.Optimizer,
        tables: Sequence[HostTable],
        layout: Layout,
        transports: Transports,
        replicas: Replicas | None = None,
    ) -> None:
        self._model = model
        self._dense_optimizer = dense_optimizer
        self._tables = tables
        self._layout = layout
        self._world = transports.control
        self._transport = transports.shards
        self._replicas = replicas
        self._is_root = self._world.rank == 0
        self._is_in_first_group = replicas is None or replicas.is_first

    def gather(self, num_steps: int) -> StateDict:
        """A collective: everything on rank 0, an empty dict elsewhere."""
        state: StateDict = {}
        if not self._is_in_first_group:
            return state
        for name, table, shard in self._shards():
            full = self._gather_rows(table, shard)
            if self._is_root:
                state[name] = full
        if not self._is_root:
            return {}
        state.update((name, tensor.detach().clone()) for name, tensor in self._model.state_dict().items())
        state.update(self._dense_optimizer_state())
        state[_NUM_STEPS] = torch.tensor(num_steps)
        return state

    def scatter(self, state: StateDict, num_steps: int) -> int:
        """A collective: take everything from rank 0's `state`; returns the number of trained steps.

        Raises ValueError on every rank for a missing, unknown or misshapen entry.
        """
        self._agree(self._problem(state) if self._is_root else "")
        with_optimizer, num_steps, dense = self._share(
            (
                any(name.startswith(_OPTIMIZER) for name in state),
                int(state.get(_NUM_STEPS, torch.tensor(num_steps))),
                # Shared from the host: pickled on a device, they would come out on rank 0's everywhere.
                {name: tensor.cpu() for name, tensor in state.items() if name not in self._table_names()},
            )
            if self._is_root
            else None
        )
        for name, table, shard in self._shards():
            if with_optimizer or not name.startswith(_OPTIMIZER):
                if self._is_in_first_group:
                    self._scatter_rows(table, shard, state.get(name))
                if self._replicas is not None:
                    own_rows = owned_rows(table, self._transport.size, self._transport.rank)
                    self._replicas.broadcast(shard[own_rows.local])
        own = self._model.state_dict()
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(dense[name])
        if with_optimizer:
            self._load_dense_optimizer(dense)
        return num_steps

    def _shards(self) -> Iterator[tuple[str, Table, torch.Tensor]]:
        """Every table and state tensor by its full name, with this rank's part of the row space."""
        for table in self._layout.tables:
            host = self._tables[table.space]
            yield table.parameter, table, host.weight
            for name, values in host.state.items():
                yield f"{_OPTIMIZER}{table.parameter}.{name}", table, values

    def _table_names(self) -> set[str]:
        return {name for name, _, _ in self._shards()}

    def _chunks(self, table: Table, width_bytes: int) -> Iterator[tuple[list[OwnedRows], int]]:
        """Every rank's next rows of `table`, and room for the longest of them."""
        owned = [owned_rows(table, self._transport.size, r) for r in range(self._transport.size)]
        room = max(1, CHUNK_BYTES // width_bytes)
        for start in range(0, max(o.count for o in owned), room):
            part = [
                OwnedRows(
                    o.first_id + start * o.num_ranks,
                    o.num_ranks,
                    o.first_local + start,
                    max(0, min(room, o.count - start)),
                )
                for o in owned
            ]
            yield part, max(o.count for o in part)

    def _gather_rows(self, table: Table, shard: torch.Tensor) -> torch.Tensor:
        width = shard.shape[1]
        full = shard.new_empty(table.num_rows if self._is_root else 0, width)
        for part, longest in self._chunks(table, width * shard.element_size()):
            mine = shard.new_zeros(longest, width)
            own = part[self._transport.rank]
            mine[: own.count] = shard[own.local]
            pieces = [mine]
            if self._transport.group is not None:
                pieces = [torch.empty_like(mine) for _ in part] if self._is_root else []
                dist.gather(mine, pieces or None, group=self._transport.group, group_dst=0)
            for rows, piece in zip(part, pieces, strict=False):
                if self._is_root:
                    full[_ids(rows)] = piece[: rows.count]
        return full

    def _scatter_rows(self, table: Table, shard: torch.Tensor, full: torch.Tensor | None) -> None:
        width = shard.shape[1]
        for part, longest in self._chunks(table, width * shard.element_size()):
            pieces = []
            if self._is_root:
                assert full is not None
                for rows in part:
                    piece = shard.new_zeros(longest, width)
                    piece[: rows.count] = full.view(table.num_rows, width)[_ids(rows)]
                    pieces.append(piece)
            mine = pieces[0] if self._transport.group is None else shard.new_empty(longest, width)
            if self._transport.group is not None:
                dist.scatter(mine, pieces or None, group=self._transport.group, group_src=0)
            own = part[self._transport.rank]
            shard[own.local] = mine[: own.count]

    def _dense_names(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self._model.named_parameters()}

    def _dense_optimizer_state(self) -> StateDict:
        names = self._dense_names()
        return {
            f"{_OPTIMIZER}{names[parameter]}.{key}": torch.as_tensor(value).detach().clone()
            for parameter, values in self._dense_optimizer.state.items()
            for key, value in values.items()
        }

    def _load_dense_optimizer(self, dense: StateDict) -> None:
        """By the optimizer's own `load_state_dict`, which knows on which device a value has to be."""
        names = self._dense_names()
        packed = self._dense_optimizer.state_dict()
        groups = zip(self._dense_optimizer.param_groups, packed["param_groups"], strict=True)
        for group, packed_group in groups:
            for parameter, index in zip(group["params"], packed_group["params"], strict=True):
                prefix = f"{_OPTIMIZER}{names[parameter]}."
                values = {n.removeprefix(prefix): t for n, t in dense.items() if n.startswith(prefix)}
                if values:
                    packed["state"][index] = {key: value.clone() for key, value in values.items()}
        self._dense_optimizer.load_state_dict(packed)

    def _problem(self, state: StateDict) -> str:
        """What is wrong with a state that is to be loaded; empty if nothing."""
        own = {name: tuple(tensor.shape) for name, tensor in self._model.state_dict().items()}
        with_optimizer = any(name.startswith(_OPTIMIZER) for name in state)
        for name, table, shard in self._shards():
            if with_optimizer or not name.startswith(_OPTIMIZER):
                own[name] = (table.num_rows, shard.shape[1])
        for name, shape in own.items():
            if name not in state:
                near = get_close_matches(name, state, n=1)
                return f"the state has no entry {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            if tuple(state[name].shape) != shape:
                return f"entry {name!r} has shape {tuple(state[name].shape)}, expected {shape}"
        unknown = [name for name in state if name not in own and not name.startswith(_OPTIMIZER)]
        return f"the state has entries the model does not know: {unknown[:5]}" if unknown else ""

    def _agree(self, problem: str) -> None:
        problem = self._share(problem)
        if problem:
            raise ValueError(f"cannot load this state: {problem}")

    def _share(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        if self._world.group is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, group=self._world.group, group_src=0)
        return box[0]


def _ids(rows: OwnedRows) -> slice:
    return slice(rows.first_id, rows.first_id + rows.count * rows.num_ranks, rows.num_ranks)
