"""Collectives of one lane, on a process group of its own.

Calls on a group match by order across ranks, so two lanes never share one; a lane's group is made on
all ranks in the same order. Without torch.distributed there is one rank, which talks to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

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

    def all_gather_bytes(self, message: bytes, size: int = 1024) -> list[bytes]:
        """Every rank's message, cut to `size` bytes; blocks."""
        mine = torch.zeros(size, dtype=torch.uint8)
        payload = message[:size]
        mine[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else 0
        gathered = [torch.zeros_like(mine) for _ in range(self.size)]
        if self.group is None:
            gathered = [mine]
        else:
            dist.all_gather(gathered, mine, group=self.group)
        return [bytes(row.numpy()).rstrip(b"\0") for row in gathered]


def wait(work: dist.Work | None) -> None:
    """Block until a collective that `Transport` started is done."""
    if work is not None:
        work.wait()


def default_group() -> dist.ProcessGroup | None:
    """The world of torch.distributed, or None where it is not initialised."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def new_lane_group(
    parent: dist.ProcessGroup | None, timeout: timedelta | None = None
) -> dist.ProcessGroup | None:
    """A new group of the same ranks; a collective, made in the same order on all ranks.

    `timeout` bounds each of its collectives; None takes the parent's, which torch does not hand on.
    """
    if parent is None:
        return None
    return dist.new_group(dist.get_process_group_ranks(parent), timeout=timeout or _timeout_of(parent))


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """A group's time limit, where its backend tells."""
    backend = group._get_backend(group._device_types[0])
    return getattr(getattr(backend, "options", None), "_timeout", None)
