"""The collectives of an evaluation, which a single process passes through."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Workers:
    """All workers of a gloo `group`, or this process alone where it is None; tensors are on the CPU."""

    group: dist.ProcessGroup | None

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of every worker's `part`, on every worker."""
        return self._reduced(part, dist.ReduceOp.SUM)

    def largest(self, value: int) -> int:
        """The largest `value` of all workers, on every worker."""
        return int(self._reduced(torch.tensor([value]), dist.ReduceOp.MAX))

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        """Every worker's rows [n, ...] behind each other in rank order, n being each worker's own."""
        if self.group is None:
            return part
        sizes, padded = self._padded(part)
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([rows[:size] for rows, size in zip(parts, sizes, strict=True)])

    def gather(self, part: torch.Tensor) -> torch.Tensor | None:
        """As `all_gather`, on rank 0 alone; None elsewhere."""
        if self.group is None:
            return part
        sizes, padded = self._padded(part)
        parts = [torch.empty_like(padded) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(padded, parts, group=self.group, group_dst=0)
        if parts is None:
            return None
        return torch.cat([rows[:size] for rows, size in zip(parts, sizes, strict=True)])

    def _reduced(self, part: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.group is None:
            return part
        reduced = part.clone()
        dist.all_reduce(reduced, operation, group=self.group)
        return reduced

    def _padded(self, part: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """Every worker's number of rows, and `part` with rows up to the largest of them."""
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(part)
        counted: list[int] = self.sum(sizes).tolist()
        padded = part.new_zeros(max(counted), *part.shape[1:])
        padded[: len(part)] = part
        return counted, padded
