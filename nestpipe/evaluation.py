"""Evaluation: forward passes over the tables as they are, and a table's rows for whoever ranks items.

Both run on the caller's thread while nothing is in flight, on that thread's own process groups, so the
lanes and the batches that are drawn ahead for training know nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from enum import IntEnum
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from nestpipe.batching import MicroBatch, move_batch, split_batch
from nestpipe.buffers import Scratch
from nestpipe.embedding import Lookup, version_of
from nestpipe.exchange import RowExchange
from nestpipe.layout import Layout, Table
from nestpipe.loading import owned_rows
from nestpipe.routing import Flag, Router
from nestpipe.stages import Engine
from nestpipe.transport import agreed_error, wait

Evaluated: TypeAlias = tuple[Any, torch.Tensor, Any]
"""A batch with its loss and output."""

_ONE_MICRO_BATCH = (1,)


class _Turn(IntEnum):
    """What a worker has for the next round; of all workers the largest decides."""

    END = 0
    BATCH = 1
    ERROR = 2


class Evaluator:
    """Runs a pipeline's model forward, one batch a round; every worker takes part in every round.

    `settle` waits for what is in flight and raises if the pipeline cannot go on; it is called before
    anything is read.
    """

    def __init__(self, engine: Engine, layout: Layout, settle: Callable[[], None]) -> None:
        self._engine = engine
        self._layout = layout
        self._settle = settle
        self._is_closed = False
        spaces = [table.space for table in engine.tables]
        shards = engine.transports.shards
        self._router = Router(spaces, shards, engine.device, engine.streams.is_asynchronous)
        self._rows = [Scratch(space.dim, space.dtype, engine.device) for space in spaces]
        self._exchanges = [
            RowExchange(shards, Scratch(space.dim, space.dtype, engine.device)) for space in spaces
        ]

    def run(self, batches: Iterator[Any]) -> Iterator[Evaluated]:
        """Each batch with its loss and output; ends when no worker has a batch left.

        A worker whose batches are at their end, or whose caller has closed the generator, answers the
        others' lookups until then.
        """
        failure: Exception | None = None
        while True:
            drawn: tuple[Any, MicroBatch] | None = None
            with torch.inference_mode(False):
                self._settle()
                if failure is None:
                    try:
                        drawn = self._draw(batches)
                    except Exception as error:  # told to the others in this round, so that none waits
                        failure = error
                if not self._goes_on(drawn is not None, failure):
                    return
                lookup = self._look_up(None if drawn is None else drawn[1])
                if drawn is None:
                    batches = iter(())  # an iterator that has ended is not asked again
                    continue
                try:
                    loss, output = self._forward(drawn[1], lookup)
                except Exception as error:
                    failure = error
                    continue
            try:
                yield drawn[0], loss, output
            except GeneratorExit:
                if self._is_closed:
                    return
                batches = iter(())

    def rows_of(self, name: str, chunk_rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Ids [n] and rows [n, dim], copies, of what this rank owns of a table, in chunks of ascending ids.

        With replicas the ranks of the first group alone have any. Raises ValueError as `find_table` does.
        """
        table = find_table(self._layout, name)
        if chunk_rows < 1:
            raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
        return self._chunks(table, chunk_rows)

    def close(self) -> None:
        """Answer no more: an evaluation that its caller left open ends without the others."""
        self._is_closed = True

    def _chunks(self, table: Table, chunk_rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        engine = self._engine
        if engine.replicas is not None and not engine.replicas.is_first:
            return
        shards = engine.transports.shards
        owned = owned_rows(table, shards.size, shards.rank)
        for start in range(0, owned.count, chunk_rows):
            self._settle()
            count = min(chunk_rows, owned.count - start)
            ids = torch.arange(start, start + count).mul_(owned.num_ranks).add_(owned.first_id)
            yield ids, engine.tables[table.space].weight.narrow(0, owned.first_local + start, count).clone()

    def _draw(self, batches: Iterator[Any]) -> tuple[Any, MicroBatch] | None:
        """The next batch, as it came and on the device; None at the end."""
        engine = self._engine
        try:
            batch = next(batches)
        except StopIteration:
            return None
        engine.reader.check(engine.features(batch))
        (part,), _ = split_batch(batch, engine.features, _ONE_MICRO_BATCH, None, None)
        is_on_host = engine.features(batch).device().type == "cpu"
        part.batch = move_batch(engine.streams.pinned(batch) if is_on_host else batch, engine.device)
        part.features = engine.features(part.batch)
        return batch, part

    def _goes_on(self, has_batch: bool, failure: Exception | None) -> bool:
        """Whether any worker has a batch; raises on every worker if any has failed."""
        control = self._engine.transports.control
        turn = _Turn.ERROR if failure is not None else _Turn.BATCH if has_batch else _Turn.END
        highest = torch.tensor(int(turn))
        wait(control.all_reduce(highest, dist.ReduceOp.MAX))
        if int(highest) == _Turn.ERROR:
            raise agreed_error(control, failure)
        return int(highest) == _Turn.BATCH

    def _look_up(self, part: MicroBatch | None) -> Lookup | None:
        """Rows of this worker's batch, from their owners; serves the others' at the same time."""
        engine = self._engine
        keys = [[torch.empty(0, dtype=torch.int64, device=engine.device)] for _ in engine.tables]
        if part is not None:
            keys = [[ids] for ids in engine.reader.keys(part.features)]
        routes = self._router.route(keys, 1, Flag.BATCH).spaces
        transfers = []
        for table, scratch, exchange, route in zip(
            engine.tables, self._rows, self._exchanges, routes, strict=True
        ):
            rows = scratch.take("rows", route.owner_rows.numel())
            table.read(route.owner_rows, rows, {})
            transfers.append(exchange.send_rows(rows, route.micro_batches[0], 0))
        for transfer in transfers:
            transfer.wait()
        if part is None:
            return None
        return Lookup(
            part.features,
            version_of(part.features),
            [transfer.received for transfer in transfers],
            [route.micro_batches[0].inverse for route in routes],
            engine.reader.counts(part.features),
        )

    def _forward(self, part: MicroBatch, lookup: Lookup | None) -> tuple[torch.Tensor, Any]:
        if not part.num_samples:
            return torch.zeros((), device=self._engine.device), None
        context = self._engine.context
        context.current = lookup
        torch.clear_autocast_cache()  # of weights as they were before the last update
        try:
            with torch.no_grad(), _evaluating(self._engine.model):
                loss, output = self._engine.model(part.batch)
        finally:
            context.current = None
        return loss, output


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, mode in modes:  # some may differ from the whole, a frozen part for example
            module.training = mode


def find_table(layout: Layout, name: str) -> Table:
    """The table of that name, its configuration's or its parameter's.

    Raises ValueError for an unknown name, and for one that several collections use.
    """
    found = [table for table in layout.tables if name in (table.name, table.parameter)]
    if len(found) == 1:
        return found[0]
    names = sorted({table.name for table in layout.tables})
    if found:
        raise ValueError(
            f"{len(found)} tables are named {name!r}; ask for one of them as "
            + " or ".join(repr(table.parameter) for table in found)
        )
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"the model has no table {name!r}; {hint}its tables: {', '.join(names)}")
