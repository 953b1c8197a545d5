"""What the cost model alone says of a step: the measured step without the real work of this machine."""

from __future__ import annotations

from harness.emulation.profiles import Profile
from nestpipe.schedule import Schedule
from nestpipe.window import WindowCosts, window_ms


def modelled_step_ms(
    profile: Profile, schedule: Schedule | None, total_comm_ms: float, latency_ms: float
) -> float:
    """Milliseconds of a step in which only modelled durations count.

    `total_comm_ms` is the time on the link of all rows and gradients, two latencies included. A method
    without a schedule (TorchRec's) does everything in turn; one that overlaps batches hides its lookup.
    """
    if schedule is None:
        return profile.lookup_ms + total_comm_ms + profile.dense_ms
    one_way_ms = max(0.0, total_comm_ms - 2 * latency_ms) / 2
    costs = WindowCosts(
        exchange_ms=one_way_ms,
        exchange_per_micro_batch_ms=0.0,
        compute_ms=profile.dense_ms - profile.launch_ms,
        compute_per_micro_batch_ms=profile.launch_ms,
        reduce_ms=one_way_ms,
        reduce_per_micro_batch_ms=0.0,
        fixed_ms=2 * latency_ms,  # only the transfers at the ends of the window wait for it
    )
    lookup_ms = 0.0 if schedule.look_ahead else profile.lookup_ms
    return lookup_ms + window_ms(costs, schedule.cuts)
