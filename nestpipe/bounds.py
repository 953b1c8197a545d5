"""Bounds: whether every index that a batch's route leads the kernels to lies inside what it points into."""

from __future__ import annotations

from collections.abc import Sequence

from nestpipe.kernels.checks import check_bounds
from nestpipe.routing import Routed, RowSpace


def check_routed(spaces: Sequence[RowSpace], routed: Routed, before: Routed | None) -> None:
    """IndexError or ValueError that names row space, micro-batch and index; waits for a device.

    All positions at which the engine reads and writes rows come from `routed`: in the host table, in the
    buffers and among the rows received. `before` is the batch before, where rows shared with it were asked
    for.
    """
    for index, (space, route) in enumerate(zip(spaces, routed.spaces, strict=True)):
        where = f"row space {index}"
        check_bounds("route", f"{where}: owner_rows", route.owner_rows, space.rows_per_rank)
        for m, part in enumerate(route.micro_batches):
            at = f"{where}, micro-batch {m}"
            check_bounds("route", f"{at}: inverse", part.inverse, part.num_requested)
            check_bounds("route", f"{at}: positions", part.positions, route.owner_rows.numel())
            num_asked = part.positions.numel()
            if sum(part.serve_splits) != num_asked:
                raise ValueError(f"route: {at}: {num_asked} positions, but ranks ask for {part.serve_splits}")
    for index, in_both in enumerate(routed.shared):
        assert before is not None
        num_active = before.spaces[index].owner_rows.numel()
        num_rows = routed.spaces[index].owner_rows.numel()
        check_bounds("route", f"row space {index}: shared active", in_both.active, num_active)
        check_bounds("route", f"row space {index}: shared prefetch", in_both.prefetch, num_rows)
