"""The methods of the comparison as schedules, TorchRec's own included; imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from baselines import registry
from harness.options import nearest
from harness.schedule_file import is_file, load_schedule
from harness.simulation.costs import Conditions, CostModel
from harness.simulation.engine import simulate
from harness.simulation.plan import plan_of
from nestpipe import schedules
from nestpipe.schedule import Lane, OpKind, Schedule
from nestpipe.schedules import CANDIDATE_CUTS, MIN_GAIN, Cuts

_STEPS_TO_CHOOSE = 12


@dataclass(frozen=True)
class SimulatedMethod:
    """A method as the simulator knows it."""

    name: str
    schedule: Schedule
    """With `auto`, its window is chosen from the costs."""
    is_grouped: bool = False
    """2D sparse parallelism. What is simulated is a step without the averaging of replicas."""
    deduplicates: bool = True
    is_exact: bool = True
    """Whether it trains like the synchronous step."""

    def settled(self, model: CostModel, conditions: Conditions) -> SimulatedMethod:
        """The method with its window chosen, where it chooses one: the shortest simulated step."""
        if not self.schedule.auto:
            return self
        whole = replace(self.schedule, auto=False)
        steps = {cuts: _step_ms(_cut(whole, cuts), model, conditions) for cuts in CANDIDATE_CUTS}
        best = min(steps, key=lambda cuts: steps[cuts])
        cuts = best if steps[best] < (1 - MIN_GAIN) * steps[1,] else (1,)
        return replace(self, schedule=_cut(whole, cuts))


def names() -> list[str]:
    """The methods that can be simulated, in display order."""
    return list(_METHODS)


def find(name_or_file: str, cuts: Cuts | None = None) -> SimulatedMethod:
    """The method of that name, or the schedule of a Python file, its window cut like `cuts` if given.

    Only methods whose window is the user's to cut heed `cuts`. ValueError with the nearest name.
    """
    if name_or_file in _METHODS:
        return _METHODS[name_or_file](cuts or 8)
    if is_file(name_or_file):
        schedule = load_schedule(name_or_file)
        return SimulatedMethod(schedule.name, schedule, is_exact=schedule.fresh)
    if name_or_file in registry.names():
        raise ValueError(f"method {name_or_file!r} has no schedule to simulate; those with one: {_listed()}")
    raise ValueError(f"unknown method {name_or_file!r}: {nearest(name_or_file, _METHODS)}")


def torchrec() -> Schedule:
    """Everything in turn on one batch: TorchRec's TrainPipelineBase."""
    return replace(schedules.sync(), name="torchrec")


def torchrec_sparse_dist() -> Schedule:
    """The next batch's keys travel under this batch's step: TorchRec's TrainPipelineSparseDist.

    Everything else is done in turn by the thread that runs the step, which takes and copies batches two
    steps ahead.
    """
    steady = []
    for op in schedules.sync().steady:
        if op.kind is OpKind.ROUTE:
            op = op.shifted(1)
        elif op.lane is not Lane.COMM:
            op = replace(op, lane=Lane.COMPUTE)
        if op.kind in (OpKind.PREFETCH, OpKind.H2D):
            op = replace(op, after=tuple(r for r in op.after if r.kind is not OpKind.WRITE_BACK)).shifted(2)
        steady.append(op)
    # Keys leave first: their batch has been on the device since the step before.
    return Schedule("torchrec-sparse-dist", tuple(sorted(steady, key=lambda op: op.kind is not OpKind.ROUTE)))


def _cut(whole: Schedule, cuts: tuple[int, ...]) -> Schedule:
    return replace(schedules.nestpipe(cuts), name=whole.name)


def _step_ms(schedule: Schedule, model: CostModel, conditions: Conditions) -> float:
    plan, times = plan_of(schedule), model.times(schedule, conditions)
    return simulate(plan, times, _STEPS_TO_CHOOSE, model.handover_ms(schedule, conditions)).step_ms()[-1]


def _listed() -> str:
    return ", ".join(_METHODS)


_METHODS: dict[str, Callable[[Cuts], SimulatedMethod]] = {
    "torchrec": lambda _: SimulatedMethod("torchrec", torchrec()),
    "torchrec-nodedup": lambda _: SimulatedMethod("torchrec-nodedup", torchrec(), deduplicates=False),
    "torchrec-sparse-dist": lambda _: SimulatedMethod("torchrec-sparse-dist", torchrec_sparse_dist()),
    "2d-sp": lambda _: SimulatedMethod("2d-sp", torchrec(), is_grouped=True, is_exact=False),
    "uniemb": lambda _: SimulatedMethod("uniemb", schedules.uniemb(), is_exact=False),
    "sync": lambda _: SimulatedMethod("sync", schedules.sync()),
    "dbp": lambda _: SimulatedMethod("dbp", schedules.dbp()),
    "fwp": lambda cuts: SimulatedMethod("fwp", schedules.fwp(cuts)),
    "nestpipe": lambda cuts: SimulatedMethod("nestpipe", schedules.nestpipe(cuts)),
    "nestpipe-chosen": lambda _: SimulatedMethod("nestpipe-chosen", schedules.nestpipe_chosen()),
    "nestpipe-2d": lambda cuts: SimulatedMethod(
        "nestpipe-2d", schedules.nestpipe(cuts), is_grouped=True, is_exact=False
    ),
}
