"""Checks of what a method promises: how exact it is, how fresh its rows are, that nothing is left behind."""

from __future__ import annotations

import gc
import math
import re
import threading
from dataclasses import dataclass
from functools import partial

import psutil
from torch.nn.modules import module as torch_module

from baselines.interface import Exactness, Method
from harness.arbiters import FLOAT64, ULP, Arbitration, move_by_one_ulp
from harness.conformance.subject import Skip, Subject, Violation
from harness.exactness import Difference, State, max_difference

JOIN_S = 5.0
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check_exactness(subject: Subject) -> str:
    """Trained on the same batches, it is as near to the method it names as it promises.

    Where rounding may be the reason, an arbiter decides, as in `nestpipe run --check exact`.
    """
    promise = subject.method.exactness
    if promise is None:
        raise Skip("nothing promised")
    reference = subject.find_method(promise.against)
    state = dict(subject.runner.state_dict())
    other = subject.retrain(reference, "float32")
    difference = subject.gather(None if subject.rank else max_difference(state, other))[0]
    detail = f"{promise.kind}: {difference.value:.1e} against {promise.against}"
    if not math.isfinite(difference.value):
        raise Violation(f"{detail}, in {difference.parameter}")
    if promise.tolerance is None or difference.value <= promise.tolerance:
        return detail
    if promise.tolerance:
        ruling = _arbitrate(subject, reference, other)
        detail += f"; {ruling.kind}: {ruling.difference.value:.1e}"
        if ruling.confirms(difference.value):
            return detail
    raise Violation(f"{detail}, in {difference.parameter}; allowed {promise.tolerance:g}")


def _arbitrate(subject: Subject, reference: Method, state: State) -> Arbitration:
    if subject.method.supports_float64 and reference.supports_float64:
        mine = subject.retrain(subject.method, "float64")
        return Arbitration(FLOAT64, _gathered(subject, mine, subject.retrain(reference, "float64")))
    moved = subject.retrain(reference, "float32", partial(move_by_one_ulp, seed=0))
    return Arbitration(ULP, _gathered(subject, moved, state))


def _gathered(subject: Subject, state: State, other: State) -> Difference:
    difference: Difference = subject.gather(None if subject.rank else max_difference(state, other))[0]
    return difference


def check_freshness(subject: Subject) -> str:
    """No row that was read was staler than the exactness class says."""
    if subject.runner.schedule is None:
        raise Skip("counted for methods on the engine")
    if subject.runner.schedule.auto and not subject.meter.rows_by_staleness:
        raise Skip("nothing counted")
    counts = subject.meter.rows_by_staleness
    allowed = _allowed_staleness(subject.method.exactness)
    if len(counts) - 1 > allowed:
        raise Violation(f"rows {len(counts) - 1} steps stale were read, allowed {allowed}")
    return f"{sum(counts):,} rows read on rank 0, the stalest {len(counts) - 1} steps old"


def _allowed_staleness(promise: Exactness | None) -> int:
    if promise is None:
        return 0
    if promise.kind == "approximate":
        raise Skip("an approximate method promises none")
    stale = re.fullmatch(r"stale by (\d+)", promise.kind)
    return int(stale[1]) if stale else 0


@dataclass(frozen=True)
class Surroundings:
    """What a method may add to a process and must take away: threads, processes, hooks."""

    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    num_global_hooks: int

    @staticmethod
    def now() -> Surroundings:
        """What there is at this moment."""
        threads = frozenset(thread for thread in threading.enumerate() if thread.is_alive())
        children = psutil.Process().children(recursive=True)
        hooks = sum(len(value) for name, value in vars(torch_module).items() if _is_hooks(name, value))
        return Surroundings(threads, frozenset(child.pid for child in children), hooks)


def check_leftovers(subject: Subject, before: Surroundings) -> str:
    """After `close` no thread, process or hook is there that was not there before `build`."""
    model = subject.setup.model
    subject.runner.close()
    num_hooks = sum(len(getattr(part, name)) for part in model.modules() for name in _HOOKS)
    del subject.runner
    gc.collect()
    left = [thread.name for thread in Surroundings.now().threads - before.threads if _outlives(thread)]
    now = Surroundings.now()
    if left:
        raise Violation(f"threads still alive after close: {', '.join(sorted(left))}")
    if processes := now.processes - before.processes:
        raise Violation(f"processes still alive after close: {', '.join(map(str, sorted(processes)))}")
    if now.num_global_hooks > before.num_global_hooks:
        raise Violation(f"{now.num_global_hooks - before.num_global_hooks} global hooks of torch are left")
    initial = sum(len(getattr(part, name)) for part in subject.initial.modules() for name in _HOOKS)
    if num_hooks > initial:
        raise Violation(f"{num_hooks - initial} hooks are left on the model's modules")
    return "no thread, process or hook"


def _outlives(thread: threading.Thread) -> bool:
    thread.join(JOIN_S)
    return thread.is_alive()


def _is_hooks(name: str, value: object) -> bool:
    return name.startswith("_global_") and name.endswith("_hooks") and isinstance(value, dict)
