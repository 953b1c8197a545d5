"""Checks of what can be read from a method: its state, evaluation, the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from baselines.interface import Runner
from harness.conformance.subject import NUM_FIRST_STEPS, Skip, Subject, Violation
from harness.conformance.training import LOSS_TOLERANCE
from nestpipe.layout import build_layout, find_collections

State = Mapping[str, torch.Tensor]


def check_start(subject: Subject) -> str:
    """Before the first step `state_dict` is the given model's weights, under its names, on rank 0 alone."""
    state = subject.runner.state_dict()
    _check_names(subject, state)
    for name, value in state.items():
        expected = subject.initial.state_dict()[name]
        if not torch.equal(value.detach().cpu(), expected):
            raise Violation(f"{name} is not what the model started with")
    return f"{len(state)} tensors"


def check_state(subject: Subject) -> str:
    """After training the same names, finite, moved, and equal when read again."""
    state = {name: value.clone() for name, value in subject.runner.state_dict().items()}
    again = subject.runner.state_dict()
    _check_names(subject, state)
    if not _equal(state, again):
        raise Violation("reading the state twice gave different values")
    if not all(bool(value.isfinite().all()) for value in state.values()):
        raise Violation("some weights are not finite")
    initial = subject.initial.state_dict()
    still = [name for name, value in state.items() if torch.equal(value.cpu(), initial[name])]
    if state and len(still) == len(state):
        raise Violation(f"no weight has moved in {NUM_FIRST_STEPS} steps")
    return f"{len(state) - len(still)} of {len(state)} tensors have moved"


def check_evaluate(subject: Subject) -> str:
    """Each batch as drawn, with the loss that the model has on the weights as they are; training keeps them.

    Workers have different numbers of batches.
    """
    if type(subject.runner).evaluate is Runner.evaluate:
        raise Skip("not offered")
    before = {name: value.clone() for name, value in subject.runner.state_dict().items()}
    batches = subject.held_out()
    results = [(batch, float(loss)) for batch, loss, _ in subject.runner.evaluate(iter(batches))]
    after = subject.runner.state_dict()
    if [id(batch) for batch, _ in results] != [id(batch) for batch in batches]:
        raise Violation(f"{len(results)} results for {len(batches)} batches, or other batches than these")
    if not _equal(before, after):
        raise Violation("evaluation has changed the weights")
    if subject.rank == 0:
        model = subject.plain_model(before)
        for batch, loss in results:
            with torch.no_grad():
                expected = float(model(batch)[0])
            if not math.isclose(loss, expected, rel_tol=LOSS_TOLERANCE, abs_tol=1e-6):
                raise Violation(f"a loss of {loss:.7g}, where the model has {expected:.7g} on these weights")
    return f"{len(results)} batches on rank 0, one less elsewhere"


def check_rows(subject: Subject) -> str:
    """Over all workers every row of every table once, equal to the state's; ValueError for another name."""
    if type(subject.runner).rows_of is Runner.rows_of:
        raise Skip("not offered")
    tables = build_layout(find_collections(subject.initial), 1).tables
    found = {table.name: list(subject.runner.rows_of(table.name)) for table in tables}
    state = subject.runner.state_dict()
    gathered = subject.gather(found)
    try:
        next(subject.runner.rows_of("no such table"), None)
    except ValueError:
        pass
    else:
        raise Violation("rows_of takes a name that no table has")
    if subject.rank:
        return ""
    for table in tables:
        chunks = [chunk for worker in gathered for chunk in worker[table.name]]
        ids = torch.cat([chunk for chunk, _ in chunks])
        order = ids.argsort()
        if not torch.equal(ids[order], torch.arange(table.num_rows)):
            raise Violation(
                f"{table.name} has rows 0 to {table.num_rows - 1}; the workers have {len(ids)}, "
                f"{len(ids.unique())} of them different"
            )
        rows = torch.cat([rows for _, rows in chunks])[order]
        if not torch.equal(rows.cpu(), state[table.parameter].cpu()):
            raise Violation(f"rows of {table.name} are not those of state_dict")
    return f"{len(tables)} tables"


def _check_names(subject: Subject, state: State) -> None:
    if subject.rank:
        if state:
            raise Violation(f"state_dict has {len(state)} tensors, where it must be empty")
        return
    known = subject.initial.state_dict()
    for name in dict(subject.initial.named_parameters()):
        if name not in state:
            raise Violation(f"state_dict lacks {name}")
    for name, value in state.items():
        if name not in known:
            raise Violation(f"state_dict has {name}, which the model does not have")
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.shape != known[name].shape:
            raise Violation(f"{name} is a {type(value).__name__} {list(value.shape)}")


def _equal(state: State, other: State) -> bool:
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)
