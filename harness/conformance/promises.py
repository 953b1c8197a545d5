"""Checks of what a method promises: how exact it is, how fresh its rows are, that nothing is left behind."""

from __future__ import annotations

import gc
import math
import threading
from dataclasses import dataclass
from functools import partial

import psutil
from torch.nn.modules import module as torch_module

from baselines.interface import Method
from harness.arbiters import FLOAT64, ULP, Arbitration, move_by_one_ulp
from harness.conformance.classes import allowed_staleness, class_of
from harness.conformance.subject import Skip, Subject, Violation
from harness.exactness import Difference, State, max_difference
from nestpipe.embedding import RowsOfEmbeddingBagCollection, RowsOfEmbeddingCollection
from nestpipe.freshness import MAX_STALENESS

JOIN_S = 5.0
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check_exactness(subject: Subject) -> str:
    """Trained on the same batches, it is as near to the method it names as it promises, and its class asks.

    Where rounding may be the reason, an arbiter decides, as in `nestpipe run --check exact`. A difference
    that float32 would hide under its own rounding shows in float64, where both methods can train in it.
    """
    promise = subject.method.exactness
    if promise is None:
        raise Skip("nothing promised")
    allowed = class_of(promise)
    reference = subject.find_method(promise.against)
    state = dict(subject.runner.state_dict())
    other = subject.retrain(reference, "float32")
    difference = _gathered(subject, state, other)
    detail = f"{promise.kind}: {difference.value:.1e} against {promise.against}"
    if not math.isfinite(difference.value):
        raise Violation(f"{detail}, in {difference.parameter}")
    if promise.tolerance is None or difference.value <= promise.tolerance:
        if allowed.float64 is not None and _hold_float64(subject, reference):
            detail += f", {_check_float64(subject, reference, allowed.float64)}"
        return detail
    if promise.tolerance:
        ruling = _arbitrate(subject, reference, other)
        detail += f"; {ruling.kind}: {ruling.difference.value:.1e}"
        if ruling.confirms(difference.value):
            return detail
    raise Violation(f"{detail}, in {difference.parameter}; allowed {promise.tolerance:g}")


def _check_float64(subject: Subject, reference: Method, most: float) -> str:
    difference = _float64_difference(subject, reference)
    detail = f"{difference.value:.1e} in float64"
    if not difference.value <= most:
        raise Violation(f"{detail}, in {difference.parameter}; allowed {most:g}")
    return detail


def _arbitrate(subject: Subject, reference: Method, state: State) -> Arbitration:
    if _hold_float64(subject, reference):
        return Arbitration(FLOAT64, _float64_difference(subject, reference))
    moved = subject.retrain(reference, "float32", partial(move_by_one_ulp, seed=0))
    return Arbitration(ULP, _gathered(subject, moved, state))


def _hold_float64(subject: Subject, reference: Method) -> bool:
    return subject.method.supports_float64 and reference.supports_float64


def _float64_difference(subject: Subject, reference: Method) -> Difference:
    mine = subject.retrain(subject.method, "float64")
    return _gathered(subject, mine, subject.retrain(reference, "float64"))


def _gathered(subject: Subject, state: State, other: State) -> Difference:
    """A collective: the difference of two states of rank 0; Violation where they cannot be compared."""
    found: Difference | str | None = None
    if subject.rank == 0:
        try:
            found = max_difference(state, other)
        except RuntimeError as error:
            found = str(error)  # raised here alone, it would leave the other workers waiting
    found = subject.gather(found)[0]
    if isinstance(found, str):
        raise Violation(found)
    assert found is not None
    return found


def check_freshness(subject: Subject) -> str:
    """No row that was read was staler than the exactness class says; a method on the engine counts them."""
    if subject.setup.freshness is None:
        raise Skip("counted on the CPU")
    counts = subject.meter.rows_by_staleness
    everyone = subject.gather(counts)
    num_rows = sum(map(sum, everyone))
    if not num_rows:
        if _is_on_engine(subject):
            raise Violation("no row was counted: give NestPipe the `freshness` of the setup")
        raise Skip("counted for methods on the engine")
    promise = subject.method.exactness
    if promise is not None and promise.kind == "approximate":
        raise Skip("an approximate method promises none")
    allowed = allowed_staleness(promise)
    if allowed >= MAX_STALENESS:
        raise Skip(f"the meter looks back {MAX_STALENESS} steps, which is no more than the promise")
    if len(counts) - 1 > allowed:
        raise Violation(f"rows {len(counts) - 1} steps stale were read, allowed {allowed}")
    return f"{num_rows:,} rows read, the stalest {max(map(len, everyone)) - 1} steps old"


def _is_on_engine(subject: Subject) -> bool:
    """Whether it says so itself, or the engine has replaced the collections of its model."""
    return subject.runner.schedule is not None or any(
        isinstance(part, RowsOfEmbeddingCollection | RowsOfEmbeddingBagCollection)
        for part in subject.setup.model.modules()
    )


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
    subject.settle()
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
