"""What `nestpipe claims run` says it will take: the launches that would run, with the user's options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from harness import estimate as estimates
from harness.claims.claim import load
from harness.claims.estimate import estimate
from harness.claims.reproduced import item_of, narrowed
from harness.estimate import Estimator
from harness.probe import Costs
from harness.reproduce.rehearsal import estimate_reproduction

COSTS = Costs(
    table_bytes=1 << 20,
    num_rows=1 << 10,
    dense_bytes=1 << 20,
    batch_bytes=1 << 10,
    batch_s=0.001,
    build_s=0.1,
    step_s=0.01,
)
SPEEDUP, TOTAL, SMALL = "speedup-nestpipe-1536", "total-comm-nestpipe", "speedup-nestpipe-128"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Estimator:
    """Nothing is timed, and every estimator says the same as this one."""
    young = partial(Estimator, age_s=lambda: 5.0)
    monkeypatch.setattr(estimates, "measure_costs", lambda *_: COSTS)
    monkeypatch.setattr(estimates, "num_cores", lambda: 2)
    monkeypatch.setattr(estimates, "Estimator", young)
    return young()


def told(
    *ids: str, num_workers: int = 4, steps: int = 20, kinds: tuple[str, ...] = ("emulated",)
) -> list[str]:
    """Every line, the last one without the memory, of which this process is a part."""
    catalogue = load()
    lines = list(estimate(catalogue, catalogue.choose(ids, kinds), num_workers, steps))
    return [*lines[:-1], lines[-1].partition(" and ")[0]]


@pytest.mark.parametrize(("num_workers", "steps"), [(4, 20), (2, 20), (2, 500)])
def test_emulated_launches_are_those_of_the_options_and_none_twice(
    known: Estimator, num_workers: int, steps: int
) -> None:
    items = [
        narrowed(item_of("table3"), [("nestpipe", "1536:speedup")]),
        narrowed(item_of("table4"), [("nestpipe", "total_comm_ms")]),
    ]
    expected = estimate_reproduction(items, num_workers, steps, known)
    assert (
        told(SPEEDUP, TOTAL, num_workers=num_workers, steps=steps)[-1] == str(expected).partition(" and ")[0]
    )
    # The total is of a run that the speedup needs as well.
    assert told(SPEEDUP, TOTAL)[-1] == told(SPEEDUP)[-1]


def test_more_steps_take_longer(known: Estimator) -> None:
    assert len({told(SPEEDUP, steps=steps)[-1] for steps in (2, 20, 500)}) == 3


def test_known_costs_are_added(known: Estimator) -> None:
    catalogue = load()
    proof = catalogue.choose(["fresh-nestpipe-proved"], ["proved"])
    slow = replace(catalogue.cost(proof[0]), seconds=36_000)
    wanted = [*proof, *catalogue.choose([SPEEDUP], ["emulated"])]
    *_, line = estimate(
        replace(catalogue, costs={**catalogue.costs, ("proof", "proved"): slow}), wanted, 4, 20
    )
    assert line.startswith("estimate: about 10.0 h")


def test_what_cannot_be_launched_is_named_and_the_rest_is_estimated(known: Estimator) -> None:
    # Three processes stand for 1,536 workers and not for 128.
    assert told(SPEEDUP, num_workers=3)[-1].startswith("estimate: about ")
    *_, small, total = told(SMALL, TOTAL, num_workers=3)
    assert small.startswith("table3 (emulated): not in the estimate: ")
    assert "3 real workers do not divide" in small
    assert total == told(TOTAL, num_workers=3)[-1]


def test_without_emulation_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "Estimator", None)
    assert told("fresh-nestpipe-proved", kinds=("proved",))[-1] == "estimate: at most about 1 s"
