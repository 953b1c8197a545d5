"""The fabric's process group: torch.distributed's collectives, each run by gloo and timed by the link.

What a collective charges to the worker's link is what the worker sends, its own share included: a real
worker stands for many emulated ones, to whom the own share is nearly nothing. It follows the ring
algorithms, where reduce_scatter and all_gather move one whole tensor each and all_reduce is the two of
them:

    all_to_all                      input
    all_gather                      output (the tensors of all ranks)
    reduce_scatter                  input (the shares of all ranks)
    all_reduce                      2 x tensor
    broadcast, reduce, gather       tensor of one rank
    scatter                         on the root the tensors of all ranks, elsewhere 0
    barrier                         0

The clock of a rooted collective starts when those have joined whose data this rank needs: of a broadcast
or scatter the root, of a reduce or gather everyone on the root and nobody elsewhere. Point-to-point
messages and functional collectives run on gloo as they are and are not modelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.emulation.joins import JoinBoard
from harness.emulation.ledger import Ledger
from harness.emulation.link import Group, Link, LinkCost, Transfer
from harness.emulation.work import FabricWork, FutureThread, OpRecord

_Base: Any = dist.ProcessGroup
"""Untyped: torch's stubs give its methods overloads that no override could match."""


class FabricGroup(_Base):
    """A group of the fabric; `gloo` does the real work, `board` tells when its members join.

    Collectives of a group match by the order in which members issue them, as everywhere.
    """

    def __init__(
        self,
        gloo: Any,  # a ProcessGroupGloo, whose stub lacks the collectives
        board: JoinBoard,
        ranks: tuple[int, ...],
        world_size: int,
        link: Link,
        ledger: Ledger,
        cost_of: Callable[[Group], LinkCost],
    ) -> None:
        super().__init__(gloo.rank(), gloo.size())
        self._gloo = gloo
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, gloo)
        self._board = board
        self._ranks = ranks
        self._world_size = world_size
        self._link = link
        self._ledger = ledger
        self._cost_of = cost_of
        self._lock = threading.Lock()
        self._num_issued = 0
        self._futures: FutureThread | None = None

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name that torch.distributed knows this backend by."""
        return "fabric"

    @cached_property
    def shape(self) -> Group:
        """Ranks, world size and description; torch gives the description after construction."""
        return Group(self._ranks, self._world_size, self.group_desc)

    def allreduce(self, tensors: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Reduce in place over the ranks."""
        run = partial(self._gloo.allreduce, tensors, *args, **kwargs)
        return self._issue("all_reduce", run, tensors, result=tensors, factor=2)

    def allreduce_coalesced(self, tensors: list[Tensor], *args: Any, **kwargs: Any) -> FabricWork:
        """Reduce several tensors in place over the ranks."""
        run = partial(self._gloo.allreduce_coalesced, tensors, *args, **kwargs)
        return self._issue("all_reduce", run, tensors, result=tensors, factor=2)

    def all_to_all_single(self, output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> FabricWork:
        """Send slices of `input`, receive slices of `output`."""
        run = partial(self._gloo.alltoall_base, output, input, *args, **kwargs)
        return self._issue("all_to_all", run, input, result=output)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], *args: Any, **kwargs: Any) -> FabricWork:
        """Send a tensor to each rank and receive one from each."""
        run = partial(self._gloo.alltoall, outputs, inputs, *args, **kwargs)
        return self._issue("all_to_all", run, inputs, result=outputs)

    def allgather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Receive every rank's tensor in a list."""
        run = partial(self._gloo.allgather, outputs, inputs, *args, **kwargs)
        return self._issue("all_gather", run, _flat(outputs), result=outputs)

    def all_gather_single(self, output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> FabricWork:
        """Receive every rank's tensor as slices of one."""
        run = partial(self._gloo._allgather_base, output, input, *args, **kwargs)
        return self._issue("all_gather", run, output, result=output)

    def allgather_coalesced(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Receive every rank's list of tensors."""
        run = partial(self._gloo.allgather_coalesced, outputs, inputs, *args, **kwargs)
        return self._issue("all_gather", run, _flat(outputs), result=outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Reduce a list of tensors over the ranks and keep this rank's."""
        run = partial(self._gloo.reduce_scatter, outputs, inputs, *args, **kwargs)
        return self._issue("reduce_scatter", run, _flat(inputs), result=outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> FabricWork:
        """Reduce a tensor over the ranks and keep this rank's slice."""
        run = partial(self._gloo._reduce_scatter_base, output, input, *args, **kwargs)
        return self._issue("reduce_scatter", run, input, result=output)

    def broadcast(self, tensors: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Copy the root's tensor to every rank."""
        run = partial(self._gloo.broadcast, tensors, *args, **kwargs)
        members = [_root(args, kwargs)]
        return self._issue("broadcast", run, tensors, result=tensors, members=members)

    def reduce(self, tensors: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Reduce over the ranks into the root's tensor."""
        run = partial(self._gloo.reduce, tensors, *args, **kwargs)
        members = self._if_root(_root(args, kwargs))
        return self._issue("reduce", run, tensors, result=tensors, members=members)

    def gather(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Receive every rank's tensor on the root."""
        run = partial(self._gloo.gather, outputs, inputs, *args, **kwargs)
        members = self._if_root(_root(args, kwargs))
        return self._issue("gather", run, inputs, result=outputs, members=members)

    def scatter(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> FabricWork:
        """Send a tensor of the root to each rank."""
        run = partial(self._gloo.scatter, outputs, inputs, *args, **kwargs)
        members = [_root(args, kwargs)]
        return self._issue("scatter", run, _flat(inputs), result=outputs, members=members)

    def barrier(self, *args: Any, **kwargs: Any) -> FabricWork:
        """Wait for every rank."""
        return self._issue("barrier", partial(self._gloo.barrier, *args, **kwargs), [], result=[])

    # torch.distributed calls the names above, C++ and older code these.
    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single

    def explain(self, work: FabricWork, error: BaseException) -> str:
        """What failed, between whom, and who had not joined."""
        missing = [self._ranks[member] for member in self._board.missing(work.number)]
        absent = f"not joined: rank {', '.join(map(str, missing))}" if missing else "every rank had joined"
        return (
            f"{work.kind} number {work.number} ({work.transfer.num_bytes} bytes) of group "
            f"{self.group_name!r} ({self.shape.description}, ranks {_listed(self._ranks)}) failed on rank "
            f"{self._ranks[self.rank()]} after {perf_counter() - work.transfer.issued_s:.1f} s; {absent}: "
            f"{error}"
        )

    def ended(self, work: FabricWork, done_s: float | None) -> None:
        """Write a collective that is through into the log; a failed one is only forgotten."""
        if done_s is None:
            self._ledger.drop(work)
            return
        transfer = work.transfer
        record = OpRecord(
            work.kind,
            self.shape,
            work.is_float,
            transfer.num_bytes,
            transfer.issued_s,
            transfer.joined_s,
            transfer.start_s,
            transfer.end_s,
            done_s,
        )
        self._ledger.end(work, record)

    def complete(self, work: FabricWork, future: torch.futures.Future[Any]) -> None:
        """Complete a future on the group's own thread."""
        with self._lock:
            if self._futures is None:
                self._futures = FutureThread(f"fabric-{self.group_name}")
        self._futures.complete(work, future)

    def shutdown(self) -> None:
        """End the group's thread; `destroy_process_group` calls this. Gloo's connections stay open."""
        self.stop_thread(timeout_s=1.0)
        super().shutdown()

    def stop_thread(self, timeout_s: float) -> bool:
        """End the thread that completes futures, if there is one; False if it is still busy."""
        with self._lock:
            thread, self._futures = self._futures, None
        return thread is None or thread.stop(timeout_s)

    def _if_root(self, root: int) -> list[int] | None:
        """Whom a reduction to `root` keeps this rank waiting for: everyone, or only itself."""
        return None if self.rank() == root else [self.rank()]

    def _issue(
        self,
        kind: str,
        run: Callable[[], dist.Work],
        payload: Any,
        *,
        result: Any,
        factor: int = 1,
        members: list[int] | None = None,
    ) -> FabricWork:
        tensors = [payload] if isinstance(payload, Tensor) else payload
        if members is not None and self.rank() not in members:
            members = [*members, self.rank()]
        num_bytes = factor * sum(tensor.nbytes for tensor in tensors)
        with self._lock:
            number = self._num_issued + 1
            transfer = Transfer(
                num_bytes,
                self._cost_of(self.shape),
                perf_counter(),
                partial(self._board.joined_s, number, members),
            )
            # Stamped first: no peer may see the result before it can see the stamp.
            self._board.stamp(number, transfer.issued_s)
            real = run()
            self._num_issued = number
        outputs = [result] if isinstance(result, Tensor) else result
        work = FabricWork(real, kind, number, transfer, self._link, tensors, outputs, self)
        self._ledger.begin(work)
        self._link.add(transfer)
        return work


def _flat(tensors: Any) -> list[Tensor]:
    """A list of tensors out of a list of lists of them, which is how torch passes one list a device."""
    return [tensor for item in tensors for tensor in ([item] if isinstance(item, Tensor) else item)]


def _root(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Rank in the group of a rooted collective's root, from torch's options or the plain argument."""
    given = args[0] if args else kwargs.get("opts", kwargs.get("root", 0))
    return given if isinstance(given, int) else given.rootRank


def _listed(ranks: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, ranks)) + ")"
