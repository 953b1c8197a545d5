"""Choosing the window: how many micro-batches, and of which sizes, from costs measured at the start.

Splitting hides transfers behind compute and costs something a micro-batch: launches, smaller
transfers, keys looked up twice. Training starts with one micro-batch, then a few steps with eight;
a line through the two gives each op's cost a batch and its cost a micro-batch, and a small model of
the window (transfers on one lane, compute on another) the time of any cut list. Every step trains.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
import torch.distributed as dist

from nestpipe.schedule import Lane, OpKind, Schedule, split_window
from nestpipe.schedules import CANDIDATE_CUTS, MIN_GAIN
from nestpipe.trace import OpEvent
from nestpipe.transport import Transport, wait

logger = logging.getLogger("nestpipe")

PROBE_MICRO_BATCHES = 8
# Steps of each window size that are measured, after some that warm it up.
MEASURED_STEPS = 5
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class WindowCosts:
    """Milliseconds a whole batch and, on top, a micro-batch, of each op of the window; `fixed_ms` and
    `fixed_per_micro_batch_ms` are what the step takes beside them."""

    exchange_ms: float
    exchange_per_micro_batch_ms: float
    compute_ms: float
    compute_per_micro_batch_ms: float
    reduce_ms: float
    reduce_per_micro_batch_ms: float
    fixed_ms: float = 0.0
    fixed_per_micro_batch_ms: float = 0.0


def window_ms(costs: WindowCosts, cuts: Sequence[int]) -> float:
    """Predicted step time of a window cut like `cuts`: transfers in issue order on one lane, compute
    on another, each waiting for what it needs."""
    total, num = sum(cuts), len(cuts)
    exchange = [costs.exchange_ms * c / total + costs.exchange_per_micro_batch_ms for c in cuts]
    compute = [costs.compute_ms * c / total + costs.compute_per_micro_batch_ms for c in cuts]
    reduce = [costs.reduce_ms * c / total + costs.reduce_per_micro_batch_ms for c in cuts]
    comm_free = compute_free = 0.0
    arrived = [0.0] * num
    for m in range(min(2, num)):
        comm_free += exchange[m]
        arrived[m] = comm_free
    for m in range(num):
        compute_free = max(compute_free, arrived[m]) + compute[m]
        comm_free = max(comm_free, compute_free) + reduce[m]
        if m + 2 < num:
            comm_free += exchange[m + 2]
            arrived[m + 2] = comm_free
    return max(comm_free, compute_free) + costs.fixed_ms + costs.fixed_per_micro_batch_ms * num


def choose_cuts(costs: WindowCosts) -> tuple[int, ...]:
    """The candidate with the shortest predicted step; one micro-batch unless another gains enough."""
    best = min(CANDIDATE_CUTS, key=lambda cuts: window_ms(costs, cuts))
    whole = window_ms(costs, (1,))
    return best if window_ms(costs, best) < (1.0 - MIN_GAIN) * whole else (1,)


def fit_costs(one: Mapping[str, float], probe: Mapping[str, float]) -> WindowCosts:
    """Costs from milliseconds a step of "exchange", "compute", "reduce" and the whole "step", measured
    with one micro-batch and with PROBE_MICRO_BATCHES."""
    span = PROBE_MICRO_BATCHES - 1
    slope = {name: max(0.0, (probe[name] - one[name]) / span) for name in ("exchange", "compute", "reduce")}
    costs = WindowCosts(
        exchange_ms=max(0.0, one["exchange"] - slope["exchange"]),
        exchange_per_micro_batch_ms=slope["exchange"],
        compute_ms=max(0.0, one["compute"] - slope["compute"]),
        compute_per_micro_batch_ms=slope["compute"],
        reduce_ms=max(0.0, one["reduce"] - slope["reduce"]),
        reduce_per_micro_batch_ms=slope["reduce"],
    )
    # Whatever else the step takes is fitted too, so that both measured steps are met exactly.
    rest_one = one["step"] - window_ms(costs, (1,))
    rest_probe = probe["step"] - window_ms(costs, (1,) * PROBE_MICRO_BATCHES)
    per_micro_batch = (rest_probe - rest_one) / span
    return replace(costs, fixed_ms=rest_one - per_micro_batch, fixed_per_micro_batch_ms=per_micro_batch)


class WindowChooser:
    """Watches the first steps of a run and then fixes the window, alike on every rank."""

    def __init__(self, schedule: Schedule, control: Transport) -> None:
        self._one = replace(schedule, auto=False)
        self._probe = split_window(self._one, PROBE_MICRO_BATCHES)
        self._control = control
        self._events: list[OpEvent] = []
        self.schedule = self._one
        self.finished = False
        self.report = "not chosen yet"
        """What was chosen and from which measured costs."""
        self._seen: dict[int, int] = defaultdict(int)
        self._measured: dict[int, list[dict[str, float]]] = defaultdict(list)
        self._last_return: float | None = None

    def record(self, event: OpEvent) -> None:
        """Take note of an op that has finished; called on every lane."""
        self._events.append(event)

    @staticmethod
    def num_steps(look_ahead: int) -> int:
        """Steps from the start of training until every batch is cut as chosen."""
        return 2 * (WARM_UP_STEPS + MEASURED_STEPS + look_ahead)

    def observe(self, step: int, used: Schedule) -> Schedule:
        """Take note of a finished step that ran by `used`; the schedule for batches drawn from now on."""
        num = used.num_micro_batches
        now = perf_counter()
        events, self._events = self._events, [e for e in self._events if e.op.step > step]
        self._seen[num] += 1
        if self._seen[num] > WARM_UP_STEPS and self._last_return is not None:
            self._measured[num].append(
                _costs_of([e for e in events if e.op.step == step])
                | {"step": 1e3 * (now - self._last_return)}
            )
        self._last_return = now
        if self.schedule is self._one and len(self._measured[1]) >= MEASURED_STEPS:
            self.schedule = self._probe
        if len(self._measured[PROBE_MICRO_BATCHES]) >= MEASURED_STEPS:
            self._decide()
        return self.schedule

    def _decide(self) -> None:
        one, probe = (self._agreed(self._measured[num]) for num in (1, PROBE_MICRO_BATCHES))
        costs = fit_costs(one, probe)
        cuts = choose_cuts(costs)
        self.schedule = split_window(self._one, cuts)
        self.finished = True
        self.report = (
            f"micro-batches of relative size {','.join(map(str, cuts))}, predicted "
            f"{window_ms(costs, cuts):.1f} ms a step; measured {one['step']:.1f} ms with one micro-batch "
            f"(exchange {one['exchange']:.1f}, compute {one['compute']:.1f}, reduce {one['reduce']:.1f}) "
            f"and {probe['step']:.1f} ms with {PROBE_MICRO_BATCHES}"
        )
        if self._control.rank == 0:
            logger.info("window chosen: %s", self.report)

    def _agreed(self, samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The least of the steps, as a busy machine only ever adds; the same numbers on every rank.

        A transfer's time contains the wait for the last rank to join, so the shortest one is the
        transfer itself; of compute and of the step the slowest rank counts.
        """
        typical = {
            name: min(sample[name] for sample in samples)
            for name in ("exchange", "reduce", "compute", "step")
        }
        signs = {"exchange": -1.0, "reduce": -1.0, "compute": 1.0, "step": 1.0}
        signed = torch.tensor([signs[name] * ms for name, ms in typical.items()], dtype=torch.float64)
        wait(self._control.all_reduce(signed, op=dist.ReduceOp.MAX))
        return {name: signs[name] * ms for name, ms in zip(typical, signed.tolist(), strict=True)}


def _costs_of(events: Iterable[OpEvent]) -> dict[str, float]:
    """Milliseconds of a step's exchanges, computes and reduces; a transfer's time in the queue behind
    the one before it on its lane is not counted again."""
    total: dict[str, float] = dict.fromkeys(("exchange", "reduce", "compute"), 0.0)
    lane_free = 0.0
    for event in sorted(events, key=lambda e: e.finished):
        kind = event.op.kind
        if event.op.lane is Lane.COMM:
            start = max(event.started, lane_free)
            lane_free = event.finished
        else:
            start = event.started
        if kind in (OpKind.EXCHANGE, OpKind.REDUCE, OpKind.COMPUTE):
            total[kind.value] += 1e3 * (event.finished - start)
    return total
