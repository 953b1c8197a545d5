"""The proof: how stale a read may be under a schedule, whatever the ops' durations.

For every life that a key can lead over a window of steps (the batches it occurs in), `verify` follows its
row through table and buffers and asks of every earlier update whether lane order and dependencies force
it to be seen. It proves the schedule, not the code that runs it: that is what tests and the meter
(`nestpipe.freshness`) are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from nestpipe.counterexample import Counterexample, explain
from nestpipe.happens_before import Order, ScheduleError, order
from nestpipe.hazards import Hazard, described, find_disorder, find_hazards
from nestpipe.late_sizes import read_sizes_late
from nestpipe.lives import Miss, Subject
from nestpipe.schedule import Buffer, Op, OpKind, Schedule, overlap_batches, split_window, synchronous

# Windows up to this many steps are searched for every set of batches; longer ones for small sets.
LONGEST_FULL_WINDOW = 7
MOST_BATCHES_IN_LONGER = 3


@dataclass(frozen=True)
class Proof:
    """What every run of a schedule keeps, and where it is not what the schedule declares, why."""

    schedule: str
    worst_staleness: int
    """Largest number of steps from an update to a read that may miss it."""
    is_bounded: bool
    """False where it is as large as the window that was searched lets it be: an update may be lost, or
    come as late as it likes."""
    declared_staleness: int
    loss: str | None
    """How an update can be lost for good, not only seen late."""
    buffer_hazards: tuple[Hazard, ...]
    collective_order: tuple[Hazard, ...]
    """Collectives that ranks may issue in different orders."""
    counterexample: Counterexample | None
    """Of the worst staleness, if that is not 0."""

    @property
    def holds(self) -> bool:
        """Whether the schedule is as good as it declares to be."""
        is_fresh = self.worst_staleness <= self.declared_staleness and self.loss is None
        return is_fresh and not self.buffer_hazards and not self.collective_order


@dataclass(frozen=True)
class _Finding:
    """The worst that happens to a subject, and whether its updates can be lost."""

    subject: Subject
    miss: Miss
    loss: str | None


def verify(schedule: Schedule) -> Proof:
    """Prove what `schedule` does to the freshness of rows and dense parameters.

    Raises ScheduleError, which names the ops, for a schedule that cannot run: a cycle, an unknown lane, a
    read of a buffer that nothing writes, an op that does not declare what it touches.
    """
    num_steps = window(schedule)
    ordered = order(schedule, num_steps)
    hazards = find_hazards(schedule, ordered)
    _check_declared(schedule)
    findings = [f for subject in subjects(schedule, num_steps) for f in _examine(subject, schedule, ordered)]
    loss = next((finding.loss for finding in findings if finding.loss), None)
    worst = max((finding.miss.staleness for finding in findings), default=0)
    return Proof(
        schedule=schedule.name,
        worst_staleness=worst,
        declared_staleness=0 if schedule.fresh else 1,
        is_bounded=worst < num_steps - 1,
        loss=loss,
        buffer_hazards=tuple(hazards),
        collective_order=tuple(find_disorder(ordered)),
        counterexample=_counterexample(findings, schedule, num_steps) if findings else None,
    )


def window(schedule: Schedule) -> int:
    """Steps within which every relation of two batches has occurred: once around the row buffers, and as
    far as a retrieve runs ahead."""
    lead = max((op.step for op in schedule.steady if op.kind is OpKind.RETRIEVE), default=0)
    return max(4, lead + schedule.num_row_buffers + 2)


def subjects(schedule: Schedule, num_steps: int) -> Iterator[Subject]:
    """Lives that a key can lead in `num_steps` steps, and the dense parameters."""
    steps = range(num_steps)
    most = num_steps if num_steps <= LONGEST_FULL_WINDOW else MOST_BATCHES_IN_LONGER
    has_replicas = any(op.kind is OpKind.AVERAGE for op in schedule.steady)
    yield Subject(tuple(steps), is_dense=True)
    for size in range(1, most + 1):
        for batches in combinations(steps, size):
            yield Subject(batches)
            if has_replicas:
                yield Subject(batches, has_peers=True)


def _examine(subject: Subject, schedule: Schedule, ordered: Order) -> Iterator[_Finding]:
    life = subject.life(schedule, ordered)
    misses = list(life.misses())
    if misses:
        loss = next(iter(life.losses()), None)
        lost = f"{loss[0].op} may leave the table without {loss[1]}, for good" if loss else None
        yield _Finding(subject, max(misses, key=lambda miss: miss.staleness), lost)


def _counterexample(findings: list[_Finding], schedule: Schedule, num_steps: int) -> Counterexample:
    """The shortest life with a loss, where there is one, or else with the worst staleness."""
    losing = [finding for finding in findings if finding.loss]
    if losing:
        chosen = min(losing, key=lambda f: (f.miss.staleness, len(f.subject.batches)))
    else:
        chosen = min(findings, key=lambda f: (-f.miss.staleness, len(f.subject.batches)))
    return explain(chosen.subject, chosen.miss, schedule, num_steps)


def _check_declared(schedule: Schedule) -> None:
    """ScheduleError unless every op declares the buffers that the engine's op of its kind touches."""
    plain = synchronous()
    model = split_window(plain if schedule.fresh else overlap_batches(plain, fresh=False), schedule.cuts)
    if schedule.fresh and any(op.kind is OpKind.SYNC for op in schedule.steady):
        model = split_window(overlap_batches(plain), schedule.cuts)
    if schedule.late_sizes:
        model = read_sizes_late(model)
    touched = {(op.kind, op.id.micro_batch): op.shifted(-op.step) for op in model.steady}
    for op in schedule.steady:
        expected = touched.get((op.kind, op.id.micro_batch))
        if expected is not None:
            mine = op.shifted(-op.step)
            _check_has(op, mine.reads, expected.reads, "reads")
            _check_has(op, mine.writes, expected.writes, "writes")


def _check_has(op: Op, declared: tuple[Buffer, ...], touched: tuple[Buffer, ...], verb: str) -> None:
    for buffer in touched:
        if buffer not in declared:
            there = described(buffer._replace(step=buffer.step + op.step))
            raise ScheduleError(f"{op.id} must declare that it {verb} {there}: the engine's {op.kind} does")
