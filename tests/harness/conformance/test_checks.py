"""Checks of a conformance launch that need no launch: the classes of exactness, and what cannot be asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baselines import registry
from baselines.interface import Exactness, Setup
from harness.conformance.classes import allowed_staleness, class_of
from harness.conformance.collectives import check_collectives
from harness.conformance.promises import check_freshness
from harness.conformance.subject import Skip, Subject, Violation
from nestpipe.freshness import MAX_STALENESS, FreshnessMeter
from nestpipe.optim import SGD


@pytest.mark.parametrize(
    ("kind", "tolerance", "message"),
    [
        ("bitwise", 1.0, "bitwise allows a tolerance of 0, not 1.0"),
        ("bitwise", None, "bitwise allows a tolerance of 0, not None"),
        ("reordered", 3e-6, "reordered allows a tolerance of 0 to 2e-06, not 3e-06"),
        ("reordered", float("nan"), "not nan"),
        ("library", 1e-4, "library allows a tolerance of 0 to 1e-05, not 0.0001"),
        ("library", None, "not None"),
        ("stale by 1", -1.0, "stale by 1 allows a tolerance of 0 to inf, not -1.0"),
        ("exactly", 0.0, "no exactness 'exactly', only bitwise, reordered, library, stale by N, approximate"),
        ("stale by N", None, "there is no exactness 'stale by N'"),
        ("stale by 0", None, "there is no exactness 'stale by 0'"),
    ],
)
def test_a_promise_that_its_class_does_not_allow_is_refused(
    kind: str, tolerance: float | None, message: str
) -> None:
    with pytest.raises(Violation) as refused:
        class_of(Exactness(kind, "sync", tolerance))
    assert message in str(refused.value)


def test_a_promise_may_be_tighter_than_its_class_but_only_some_may_leave_it_open() -> None:
    for kind, tolerance in (("reordered", 1e-7), ("stale by 2", None), ("approximate", None)):
        class_of(Exactness(kind, "sync", tolerance))
    assert allowed_staleness(Exactness("stale by 12", "sync", None)) == 12
    assert allowed_staleness(Exactness("reordered", "sync", 1e-7)) == allowed_staleness(None) == 0


@pytest.mark.parametrize("name", registry.names())
def test_every_method_promises_what_its_class_allows(name: str) -> None:
    promise = registry.get(name).exactness
    if promise is not None:
        class_of(promise)


def subject(**values: Any) -> Any:
    """Stands in for a Subject, with what a check looks at first."""
    return SimpleNamespace(**values)


def test_collectives_are_not_counted_where_they_cannot_be() -> None:
    with pytest.raises(Skip, match="several workers"):
        check_collectives(subject(num_workers=1))
    with pytest.raises(Skip, match="share a machine"):
        check_collectives(subject(num_workers=2, fabric=None))
    # With a backend of its own a method passes the fabric by.
    silent = subject(num_workers=2, fabric=object(), phases=[], gather=lambda mine: [mine, mine])
    with pytest.raises(Skip, match="process groups that the method was given"):
        check_collectives(silent)


def test_freshness_is_not_asked_for_on_a_device() -> None:
    given: list[Setup] = []
    model = torch.nn.Linear(1, 1)
    setup = Setup(model, SGD(1.0), torch.optim.Adam, device=torch.device("meta"))
    there = subject(setup_for=lambda dtype: setup, meter=FreshnessMeter(), method=subject(build=given.append))
    Subject.build(there)
    assert given[0].freshness is None
    with pytest.raises(Skip, match="on the CPU"):
        check_freshness(there)


def test_a_promise_beyond_what_the_meter_sees_is_not_called_kept() -> None:
    counted = subject(
        setup=subject(freshness=object()),
        meter=subject(rows_by_staleness=[1] * (MAX_STALENESS + 1)),
        gather=lambda counts: [counts],
        method=subject(exactness=Exactness(f"stale by {MAX_STALENESS}", "sync", None)),
    )
    with pytest.raises(Skip, match="looks back 16 steps"):
        check_freshness(counted)
