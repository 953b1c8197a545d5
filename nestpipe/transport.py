"""Collectives of one lane, on a process group of its own.

Calls on a group match by order across ranks, so two lanes never share one; a lane's group is made on
all ranks in the same order. Without torch.distributed there is one rank, which talks to itself.

Under two-dimensional sparse parallelism the workers form a grid: tables are sharded inside a group,
and the groups are replicas of each other. With R of them, sharding group i holds ranks i, R + i,
2R + i, ... as TorchRec's DMPCollection has it, and R contiguous ranks hold the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Splits = Sequence[int] | None


class Transport:
    """All2All and all-reduce among the ranks of a group; `group` None is a single rank."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def all_to_all(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Splits = None,
        input_splits: Splits = None,
    ) -> dist.Work | None:
        """Start sending `input_splits[r]` leading slices to each rank r; None when it is done already.

        `output` [sum(output_splits), ...] is filled once the returned work has been waited for; both
        tensors must be contiguous and stay alive until then.
        """
        if self.group is None:
            output.copy_(input)
            return None
        return dist.all_to_all_single(
            output,
            input,
            None if output_splits is None else list(output_splits),
            None if input_splits is None else list(input_splits),
            group=self.group,
            async_op=True,
        )

    def all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> dist.Work | None:
        """Start reducing `tensor` in place over the ranks; None when it is done already."""
        if self.group is None:
            return None
        return dist.all_reduce(tensor, op=op, group=self.group, async_op=True)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's `tensor`, of one shape on all of them; blocks."""
        if self.group is None:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor, group=self.group)
        return gathered

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Overwrite `tensor`, contiguous, with rank 0's; blocks."""
        if self.group is not None:
            dist.broadcast(tensor, group=self.group, group_src=0)

    def all_gather_bytes(self, message: bytes, size: int = 1024) -> list[bytes]:
        """Every rank's message, cut to `size` bytes; blocks."""
        mine = torch.zeros(size, dtype=torch.uint8)
        payload = message[:size]
        mine[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else 0
        return [bytes(row.numpy()).rstrip(b"\0") for row in self.all_gather(mine)]


def wait(work: dist.Work | None) -> None:
    """Block until a collective that `Transport` started is done."""
    if work is not None:
        work.wait()


def agreed_error(transport: Transport, error: BaseException | None) -> BaseException:
    """A collective once any rank has an error: this rank's own, or one that says which rank has one."""
    message = "" if error is None else f"{type(error).__name__}: {error}"
    messages = transport.all_gather_bytes(message.encode())
    if error is not None:
        return error
    rank, text = next((r, m.decode(errors="replace")) for r, m in enumerate(messages) if m)
    return ValueError(f"stopped because rank {rank} could not go on: {text}")


@dataclass(frozen=True)
class Transports:
    """A transport for every lane that communicates and every set of ranks it talks to."""

    keys: Transport
    """Keys lane, the ranks that share the tables."""
    agreement: Transport
    """Keys lane, all workers."""
    comm: Transport
    """Comm lane, the ranks that share the tables."""
    dense: Transport
    """Comm lane, all workers."""
    control: Transport
    """The caller's thread, all workers."""
    shards: Transport
    """The caller's thread, the ranks that share the tables."""
    replicas: Transport | None = None
    """Memory lane, and the caller's thread when nothing is in flight: the ranks with the same rows."""


@dataclass(frozen=True)
class Kind:
    """What the groups of a pipeline are made of."""

    device: torch.device
    """Where rows and keys are; the lanes' agreements are on the host."""
    timeout: timedelta | None = None
    """Of each collective; None takes the parent's, which torch does not hand on."""
    zero_sm: bool = False
    """Ask NCCL to move data by copy engines where it can, and leave the multiprocessors to compute."""


def connect(world: dist.ProcessGroup | None, replicas: int, kind: Kind) -> Transports:
    """A collective: the transports of a pipeline over the workers of `world` in `replicas` groups.

    Raises ValueError where `replicas` does not divide the number of workers, and for `zero_sm` where this
    torch has no NCCL that can.
    """
    num_workers = 1 if world is None else dist.get_world_size(world)
    if replicas < 1 or num_workers % replicas:
        raise ValueError(
            f"{num_workers} workers cannot be split into replicas={replicas} equal groups; choose replicas "
            f"that divide {num_workers}"
        )
    if replicas == 1:
        keys, comm, control = (Transport(new_lane_group(world, kind)) for _ in range(3))
        return Transports(keys, keys, comm, comm, control, control)
    assert world is not None
    everyone = [range(num_workers)]
    sharding = [range(first, num_workers, replicas) for first in range(replicas)]
    same_rows = [range(first, first + replicas) for first in range(0, num_workers, replicas)]
    keys, agreement, comm, dense, control, shards, averaging = (
        Transport(_new_part_group(world, parts, kind))
        for parts in (sharding, everyone, sharding, everyone, everyone, sharding, same_rows)
    )
    return Transports(keys, agreement, comm, dense, control, shards, averaging)


def default_group() -> dist.ProcessGroup | None:
    """The world of torch.distributed, or None where it is not initialised."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def new_lane_group(
    parent: dist.ProcessGroup | None,
    kind: Kind,
) -> dist.ProcessGroup | None:
    """A new group of the same ranks; a collective, made in the same order on all ranks."""
    if parent is None:
        return None
    return _new_group(parent, dist.get_process_group_ranks(parent), kind)


def _new_part_group(
    parent: dist.ProcessGroup, parts: Sequence[Sequence[int]], kind: Kind
) -> dist.ProcessGroup | None:
    """The new group of this rank's part of the parent's ranks, None where it is alone in it.

    Every rank makes the groups of all parts, as torch requires.
    """
    ranks = dist.get_process_group_ranks(parent)
    own = dist.get_rank(parent)
    mine = None
    for part in (part for part in parts if len(part) > 1):
        group = _new_group(parent, [ranks[r] for r in part], kind)
        if own in part:
            mine = group
    return mine


def _new_group(parent: dist.ProcessGroup, ranks: list[int], kind: Kind) -> dist.ProcessGroup:
    return dist.new_group(
        ranks,
        timeout=kind.timeout or _timeout_of(parent),
        backend=_backend(parent, kind.device),
        pg_options=zero_sm_options() if kind.zero_sm else None,
    )


def _backend(parent: dist.ProcessGroup, device: torch.device) -> str:
    """The parent's own where it has one for the host and one for the device, else torch's for each.

    A parent of plain "gloo" has it for the device too, for want of another, and moves rows through the host.
    Who wants that, as where workers share a device, says "cpu:gloo,cuda:gloo".
    """
    own = dist.get_backend(parent)
    present = {of.type for of in parent._device_types}
    is_for_the_host = own == dist.Backend.GLOO and device.type != "cpu"
    if {"cpu", device.type} <= present and not is_for_the_host:
        return own
    backends = {"cpu": dist.Backend.GLOO, device.type: dist.get_default_backend_for_device(device)}
    return ",".join(f"{of}:{backend}" for of, backend in backends.items())


def zero_sm_options() -> Any:
    """Options of a process group that let NCCL use copy engines instead of multiprocessors.

    NCCL takes them, from 2.28, for data in symmetric windows within a node, and goes on as before
    otherwise. Raises ValueError where torch has no such option.
    """
    nccl = getattr(dist, "ProcessGroupNCCL", None)
    policy = getattr(nccl, "NCCL_CTA_POLICY_ZERO", None)
    if nccl is None or policy is None:
        raise ValueError(
            f"zero_sm=True needs NCCL 2.28 or later, which torch {torch.__version__} does not offer here; "
            "leave it out"
        )
    options = nccl.Options()
    options.config.cta_policy = policy
    return options


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """A group's time limit, where its backend tells."""
    backend = group._get_backend(group._device_types[0])
    return getattr(getattr(backend, "options", None), "_timeout", None)
