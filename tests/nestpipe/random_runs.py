"""Runs of a schedule with random durations, and what a row's reads see in them: the verifier's reference.

It knows how lanes behave and what each op does to a row, and nothing of how the verifier reasons.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Collection

from nestpipe.schedule import Op, OpId, OpKind, Schedule

TRANSFERS = (OpKind.EXCHANGE, OpKind.REDUCE, OpKind.ALLREDUCE)


def random_run(schedule: Schedule, num_steps: int, rng: random.Random) -> list[tuple[str, Op]]:
    """("start" | "finish", op) in an order that lanes and dependencies allow."""
    lanes: dict[str, deque[Op]] = defaultdict(deque)
    for step in range(-schedule.look_ahead, num_steps):
        for op in schedule.ops(step):
            lanes[op.lane].append(op)
    issued = {op.id for queue in lanes.values() for op in queue}
    finished: set[OpId] = set()
    running: list[Op] = []
    busy: dict[str, Op] = {}
    events = []
    # Some lanes and transfers are much slower than others in one run, so that rare orders turn up.
    weight: dict[object, float] = defaultdict(lambda: 10 ** rng.uniform(-3, 0))
    while any(lanes.values()) or running:
        ready = [
            queue[0]
            for lane, queue in lanes.items()
            if queue
            and lane not in busy
            and all(ref in finished or ref not in issued for ref in queue[0].after)
        ]
        choices = [("start", op) for op in ready] + [("finish", op) for op in running]
        assert choices, "the schedule is stuck"
        what, op = rng.choices(choices, [weight[what, op.kind, op.id.micro_batch] for what, op in choices])[0]
        events.append((what, op))
        if what == "start":
            lanes[op.lane].popleft()
            running.append(op)
            if op.kind not in TRANSFERS:
                busy[op.lane] = op
        else:
            running.remove(op)
            finished.add(op.id)
            if busy.get(op.lane) is op:
                del busy[op.lane]
    return events


def staleness(events: list[tuple[str, Op]], schedule: Schedule, batches: Collection[int]) -> int:
    """Of the worst read of a row whose key is in `batches`: steps since the first update it missed.

    Values are read when an op starts and written when it finishes.
    """
    places: dict[object, frozenset[int]] = defaultdict(frozenset)
    held: dict[OpId, frozenset[int]] = {}
    worst = 0
    for what, op in events:
        step, kind = op.step, op.kind
        if step not in batches:
            continue
        source: object = ("rows", step)
        target: object = ("rows", step)
        adds = frozenset[int]()
        if kind is OpKind.RETRIEVE:
            source = "table"
        elif kind is OpKind.SYNC and step - 1 in batches:
            source = ("rows", step - 1)
        elif kind is OpKind.EXCHANGE:
            target = None
        elif kind is OpKind.UPDATE and schedule.fresh:
            adds = frozenset([step])
        elif kind is OpKind.WRITE_BACK:
            target = "table"
            if not schedule.fresh:
                source, adds = "table", frozenset([step])
        else:
            continue
        if what == "start":
            held[op.id] = places[source] | adds
            if kind is OpKind.EXCHANGE:
                missed = [before for before in batches if before < step and before not in held[op.id]]
                worst = max([worst, *(step - before for before in missed)])
        elif target is not None:
            places[target] = held[op.id]
    return worst
